//! What makes a spec valid beyond its schema. The API server checks the schema and its CEL rules at apply; everything is
//! checked here again, because a local run has no API server, and with it what CEL cannot say. Every problem names its field.

mod broker;

use std::{collections::HashSet, fmt, hash::BuildHasher};

use crate::{
    MqttLoadTestSpec,
    plan::publish_schedule,
    spec::{Group, Load, Publish, Subscribe},
    template::{Placeholder, Template, Values},
};

/// One thing that is wrong with a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, as in `spec.groups[0].publish[1].topic`.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Longest client identifier, user name or topic on the wire (MQTT 5.0 section 1.5.4).
const LONGEST_STRING: usize = 65_535;
/// Largest payload that is made from a size.
const LARGEST_PAYLOAD: u64 = 16 << 20;
/// Most messages a second of one entry: beyond it a manifest is a slip of the pen.
const MOST_PER_SECOND: u64 = 100_000_000;

/// All problems of a spec; none means that it can be planned and run.
pub fn validate(spec: &MqttLoadTestSpec) -> Vec<Problem> {
    let mut found = Found::default();
    broker::check(&spec.broker, &mut found);
    if spec.groups.is_empty() || spec.groups.len() > 16 {
        found.add("spec.groups", "needs 1 to 16 groups");
    }
    unique("spec.groups", spec.groups.iter().map(|group| group.name.as_str()), &mut found);
    for (i, group) in spec.groups.iter().enumerate() {
        validate_group(&format!("spec.groups[{i}]"), group, &spec.load, &mut found);
    }
    load(&spec.load, &mut found);
    if spec.run_id.len() > 63 {
        found.add("spec.runId", "is longer than 63 characters");
    }
    if found.0.is_empty() {
        client_ids(spec, &mut found);
    }
    found.0
}

#[derive(Default)]
struct Found(Vec<Problem>);

impl Found {
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(Problem { path: path.into(), message: message.into() });
    }

    fn range(&mut self, path: String, value: i64, least: i64, most: i64) {
        if value < least || value > most {
            self.add(path, format!("is {value}, but must be {least} to {most}"));
        }
    }

    /// Parses a template and refuses placeholders that have no value at this place.
    fn template(&mut self, path: &str, text: &str, allowed: &[Placeholder]) {
        match Template::parse(text) {
            Err(error) => self.add(path, error.to_string()),
            Ok(template) => {
                for placeholder in [Placeholder::Number, Placeholder::ClientId, Placeholder::Username, Placeholder::Sequence] {
                    if template.has(placeholder) && !allowed.contains(&placeholder) {
                        self.add(path, format!("the placeholder for {placeholder:?} has no value here"));
                    }
                }
            }
        }
        if text.contains('\0') {
            self.add(path, "holds a NUL character, which MQTT forbids (MQTT 5.0 section 1.5.4)");
        }
    }
}

fn unique<'a>(path: &str, names: impl Iterator<Item = &'a str>, found: &mut Found) {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            found.add(path, format!("the name \"{name}\" occurs twice"));
        }
    }
}

fn validate_group(path: &str, group: &Group, load: &Load, found: &mut Found) {
    found.range(format!("{path}.clients"), group.clients.into(), 1, 1_000_000);
    found.range(format!("{path}.startNumber"), group.start_number, 0, 1_000_000_000);
    found.range(format!("{path}.maxInflight"), group.max_inflight.into(), 1, 65_535);
    let id_path = format!("{path}.clientId");
    found.template(&id_path, &group.client_id, &[Placeholder::Number]);
    if group.clients > 1 && Template::parse(&group.client_id).is_ok_and(|id| !id.has(Placeholder::Number)) {
        found.add(id_path, "needs %i when there is more than one client, or all would share one identifier");
    }
    let keep_alive = group.keep_alive.get();
    if keep_alive.as_secs() > 65_535 || keep_alive.subsec_nanos() != 0 {
        found.add(format!("{path}.keepAlive"), "must be whole seconds, 0s to 65535s (MQTT 5.0 section 3.1.2.10)");
    }
    if group.connect.timeout.as_nanos() == 0 {
        found.add(format!("{path}.connect.timeout"), "must be above 0s");
    }
    if group.reconnect.max_backoff.get() < group.reconnect.min_backoff.get() {
        found.add(format!("{path}.reconnect.maxBackoff"), "must not be below minBackoff");
    }
    if group.shards.count.is_some() && group.shards.clients_per_shard.is_some() {
        found.add(format!("{path}.shards"), "give count or clientsPerShard, not both");
    }
    let shards = [
        group.shards.count.map(|n| ("count", n, 10_000)),
        group.shards.clients_per_shard.map(|n| ("clientsPerShard", n, 1_000_000)),
    ];
    for (field, value, most) in shards.into_iter().flatten() {
        found.range(format!("{path}.shards.{field}"), value.into(), 1, most);
    }
    ramp_fits(path, group, load, found);
    for (name, length) in [("publish", group.publish.len()), ("subscribe", group.subscribe.len())] {
        if length > 16 {
            found.add(format!("{path}.{name}"), "has more than 16 entries");
        }
    }
    unique(&format!("{path}.publish"), group.publish.iter().map(|entry| entry.name.as_str()), found);
    unique(&format!("{path}.subscribe"), group.subscribe.iter().map(|entry| entry.name.as_str()), found);
    for (i, entry) in group.publish.iter().enumerate() {
        publish(&format!("{path}.publish[{i}]"), group, entry, found);
    }
    for (i, entry) in group.subscribe.iter().enumerate() {
        subscribe(&format!("{path}.subscribe[{i}]"), entry, found);
    }
}

/// The barrier's timeout counts from the release of the connects, so it must hold the ramp with room to spare.
fn ramp_fits(path: &str, group: &Group, load: &Load, found: &mut Found) {
    let ramp = f64::from(group.clients) / group.connect.rate_per_second.per_second();
    let timeout = load.barrier.timeout.get().as_secs_f64();
    if timeout < 1.5 * ramp {
        found.add(
            "spec.load.barrier.timeout",
            format!(
                "is {}, but {path} needs {ramp:.0} s to connect {} clients at {}/s: allow at least 1.5 times that, {:.0}s",
                load.barrier.timeout,
                group.clients,
                group.connect.rate_per_second,
                (1.5 * ramp).ceil()
            ),
        );
    }
}

fn publish(path: &str, group: &Group, entry: &Publish, found: &mut Found) {
    use Placeholder::{ClientId, Number, Sequence, Username};
    let everywhere = [Number, ClientId, Username, Sequence];
    let topic = format!("{path}.topic");
    found.template(&topic, &entry.topic, &everywhere);
    if entry.topic.is_empty() || entry.topic.len() > LONGEST_STRING {
        found.add(&topic, "must have 1 to 65535 bytes");
    }
    if entry.topic.contains(['#', '+']) {
        found.add(&topic, "a topic to publish to has no wildcards (MQTT 5.0 section 4.7.1)");
    }
    found.range(format!("{path}.qos"), entry.qos.into(), 0, 2);
    if entry.interval.is_some() == entry.rate_per_second.is_some() {
        found.add(path, "give exactly one of interval (per client) and ratePerSecond (of the whole group)");
    } else if entry.interval.as_ref().is_some_and(|interval| interval.as_nanos() == 0) {
        found.add(format!("{path}.interval"), "must be above 0s");
    } else if publish_schedule(group, entry).slots_before(1_000_000_000) > MOST_PER_SECOND {
        found.add(path, format!("is more than {MOST_PER_SECOND} messages a second"));
    }
    match (&entry.payload.size, &entry.payload.text) {
        (Some(_), Some(_)) => found.add(format!("{path}.payload"), "give size or text, not both"),
        (Some(size), None) if size.bytes() > LARGEST_PAYLOAD => {
            found.add(format!("{path}.payload.size"), format!("is {size}, but must be 16Mi at most"));
        }
        (None, Some(text)) => found.template(&format!("{path}.payload.text"), text, &everywhere),
        _ => {}
    }
}

fn subscribe(path: &str, entry: &Subscribe, found: &mut Found) {
    let filter = format!("{path}.filter");
    found.template(&filter, &entry.filter, &[Placeholder::Number, Placeholder::ClientId, Placeholder::Username]);
    found.range(format!("{path}.qos"), entry.qos.into(), 0, 2);
    if let Err(message) = check_filter(&entry.filter) {
        found.add(filter, message);
    }
}

/// Checks a topic filter (MQTT 5.0 sections 4.7.1 and 4.8.2).
fn check_filter(filter: &str) -> Result<(), &'static str> {
    let plain = match filter.strip_prefix("$share/") {
        None => filter,
        Some(shared) => match shared.split_once('/') {
            Some((name, plain)) if !name.is_empty() && !name.contains(['#', '+']) => plain,
            _ => return Err("a shared subscription is written $share/NAME/FILTER (MQTT 5.0 section 4.8.2)"),
        },
    };
    if plain.is_empty() || plain.len() > LONGEST_STRING {
        return Err("must have 1 to 65535 bytes");
    }
    let levels: Vec<&str> = plain.split('/').collect();
    for (i, level) in levels.iter().enumerate() {
        if level.contains('#') && (*level != "#" || i + 1 != levels.len()) {
            return Err("# stands alone in the last level (MQTT 5.0 section 4.7.1.2)");
        }
        if level.contains('+') && *level != "+" {
            return Err("+ stands alone in a level (MQTT 5.0 section 4.7.1.3)");
        }
    }
    Ok(())
}

fn load(load: &Load, found: &mut Found) {
    if load.duration.as_nanos() == 0 {
        found.add("spec.load.duration", "must be above 0s");
    }
    if load.start_timeout.as_nanos() == 0 {
        found.add("spec.load.startTimeout", "must be above 0s");
    }
    if load.seed < 0 {
        found.add("spec.load.seed", "must not be negative");
    }
}

/// No two clients may have one identifier, within a group or across groups: the broker would disconnect one of them
/// (MQTT 5.0 section 3.1.4).
fn client_ids(spec: &MqttLoadTestSpec, found: &mut Found) {
    let hasher = std::hash::RandomState::new();
    let total = spec.groups.iter().map(|group| usize::try_from(group.clients).unwrap_or(0)).sum();
    let mut seen: HashSet<u64> = HashSet::with_capacity(total);
    let mut id = String::new();
    for (i, group) in spec.groups.iter().enumerate() {
        let Ok(template) = Template::parse(&group.client_id) else { continue };
        if template.parts().len() == 1 && spec.groups.len() == 1 {
            continue;
        }
        for rank in 0..u64::try_from(group.clients).unwrap_or(0) {
            id.clear();
            let number = u64::try_from(group.start_number).unwrap_or(0) + rank;
            template.render_into(&mut id, &Values { number, group: &group.name, ..Values::default() });
            if id.len() > LONGEST_STRING {
                found.add(format!("spec.groups[{i}].clientId"), "is longer than 65535 bytes");
                return;
            }
            if !seen.insert(hasher.hash_one(&id)) {
                found.add(
                    format!("spec.groups[{i}].clientId"),
                    format!("\"{id}\" is also another client's identifier: give the groups different clientIds or startNumbers"),
                );
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn smallest() -> Value {
        json!({"broker": {"endpoints": ["mqtt://b"]}, "groups": [{"name": "g", "clients": 2,
            "publish": [{"name": "p", "topic": "a/%i", "interval": "1s"}], "subscribe": [{"name": "s", "filter": "a/#"}]}]})
    }

    fn problems(edit: impl Fn(&mut Value)) -> Vec<String> {
        let mut spec = smallest();
        edit(&mut spec);
        validate(&serde_json::from_value(spec).unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_small_valid_spec_has_no_problems() {
        assert_eq!(problems(|_| {}), Vec::<String>::new());
    }

    #[test]
    fn every_problem_names_its_field() {
        type Edit = fn(&mut Value);
        let cases: [(&str, Edit); 29] = [
            ("spec.broker.endpoints[0]", |s| s["broker"]["endpoints"] = json!(["http://b"])),
            ("spec.broker.endpoints[0]", |s| s["broker"]["endpoints"] = json!(["mqtt://b:99999"])),
            ("spec.broker.endpoints[0]", |s| s["broker"]["endpoints"] = json!(["mqtts://b/path"])),
            ("spec.broker.tls", |s| s["broker"]["tls"] = json!({})),
            ("spec.broker.tls.caFrom", |s| s["broker"] = json!({"endpoints": ["mqtts://b"], "tls": {"caFrom": {}}})),
            ("spec.broker.tls.serverName", |s| s["broker"] = json!({"endpoints": ["wss://b"], "tls": {"serverName": "a b"}})),
            ("spec.broker.tls.caFrom", |s| {
                let ca = json!({"secret": {"name": "a", "key": "b"}});
                s["broker"] = json!({"endpoints": ["mqtts://b"], "tls": {"caFrom": ca, "verification": "None"}});
            }),
            ("spec.broker.webSocket", |s| s["broker"] = json!({"endpoints": ["mqtts://b"], "webSocket": {}})),
            ("spec.broker.webSocket.headers[0].name", |s| {
                s["broker"] = json!({"endpoints": ["ws://b"], "webSocket": {"headers": [{"name": "Host", "value": "x"}]}});
            }),
            ("spec.broker.credentials.passwordFrom", |s| {
                s["broker"]["credentials"] = json!({"passwordFrom": {"secret": {"name": "a", "key": "b"}}})
            }),
            ("spec.broker.credentials.username", |s| s["broker"]["credentials"] = json!({"username": "%s"})),
            ("spec.groups[0].clients", |s| s["groups"][0]["clients"] = json!(0)),
            ("spec.groups[0].clientId", |s| s["groups"][0]["clientId"] = json!("same")),
            ("spec.groups[0].clientId", |s| s["groups"][0]["clientId"] = json!("%i-%s")),
            ("spec.groups[0].clientId", |s| s["groups"][0]["clientId"] = json!("%i%{shoe}")),
            ("spec.groups[0].keepAlive", |s| s["groups"][0]["keepAlive"] = json!("1500ms")),
            ("spec.groups[0].shards", |s| s["groups"][0]["shards"] = json!({"count": 1, "clientsPerShard": 1})),
            ("spec.groups[0].reconnect.maxBackoff", |s| {
                s["groups"][0]["reconnect"] = json!({"minBackoff": "2s", "maxBackoff": "1s"})
            }),
            ("spec.load.barrier.timeout", |s| s["groups"][0]["connect"] = json!({"ratePerSecond": "1/3600"})),
            ("spec.groups[0].publish[0].topic", |s| s["groups"][0]["publish"][0]["topic"] = json!("a/#")),
            ("spec.groups[0].publish[0].topic", |s| s["groups"][0]["publish"][0]["topic"] = json!("a/%x")),
            ("spec.groups[0].publish[0]", |s| s["groups"][0]["publish"][0]["ratePerSecond"] = json!(5)),
            ("spec.groups[0].publish[0].interval", |s| s["groups"][0]["publish"][0]["interval"] = json!("0s")),
            ("spec.groups[0].publish[0].qos", |s| s["groups"][0]["publish"][0]["qos"] = json!(3)),
            ("spec.groups[0].publish[0].payload", |s| s["groups"][0]["publish"][0]["payload"] = json!({"size": 1, "text": "a"})),
            ("spec.groups[0].subscribe[0].filter", |s| s["groups"][0]["subscribe"][0]["filter"] = json!("a/#/b")),
            ("spec.groups[0].subscribe[0].filter", |s| s["groups"][0]["subscribe"][0]["filter"] = json!("$share/name")),
            ("spec.groups[0].subscribe[0].filter", |s| s["groups"][0]["subscribe"][0]["filter"] = json!("a+/b")),
            ("spec.load.duration", |s| s["load"] = json!({"duration": "0s"})),
        ];
        for (path, edit) in cases {
            let found = problems(edit);
            assert!(found.iter().any(|problem| problem.starts_with(&format!("{path}: "))), "{path}: {found:?}");
        }
    }

    #[test]
    fn two_groups_may_not_share_a_client_identifier() {
        let found = problems(|s| {
            s["groups"][0]["clientId"] = json!("c-%i");
            s["groups"].as_array_mut().unwrap().push(json!({"name": "h", "clients": 2, "clientId": "c-%i", "startNumber": 1}));
        });
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("spec.groups[1].clientId: \"c-1\""), "{found:?}");
        let apart = problems(|s| {
            s["groups"][0]["clientId"] = json!("c-%i");
            s["groups"].as_array_mut().unwrap().push(json!({"name": "h", "clients": 2, "clientId": "c-%i", "startNumber": 2}));
        });
        assert_eq!(apart, Vec::<String>::new());
    }
}
