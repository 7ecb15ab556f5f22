//! What a subscriber may miss through nobody's fault: deliveries that were due while it was not connected and no session
//! kept them for it.
//!
//! A shard sees its own publishers only, but the plan says when every message of the run is due, so the number is a
//! formula: for each publish entry whose topics the client's filters match, the slots between two instants. It is an upper
//! bound (a slot that was skipped counts too), because it is taken off what is surely lost.

use super::filters::{self, FilterIndex, Piece};
use mqtt_loadtest_crds::plan::{RunPlan, Schedule, publish_schedule};
use mqtt_loadtest_crds::template::{Template, UnknownPlaceholder};
use std::collections::BTreeSet;

/// The publish entries of a run, seen from the subscribers of one group.
#[derive(Debug)]
pub struct Excuses {
    sources: Vec<Source>,
    /// For each subscription of the group, over how many members its messages are dealt; 1 for a plain one.
    members: Vec<u64>,
}

/// One publish entry of one group.
#[derive(Debug)]
struct Source {
    schedule: Schedule,
    start_number: u64,
    clients: u64,
    /// The topic's levels.
    topic: Vec<Vec<Piece>>,
    qos: u8,
    max_behind: u64,
}

/// Which clients' messages of an entry a filter matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Publishers {
    Nobody,
    /// The one with this rank in its group.
    One(u64),
    /// All, or some that cannot be told.
    All,
}

/// A time in which a client was away, in ns from the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The last instant at which it surely had everything that had been sent.
    pub from: u64,
    /// The first instant at which deliveries are owed again.
    pub to: u64,
    /// What was due before this is settled already. A message due before `from` may have been sent after it.
    pub floor: u64,
}

impl Excuses {
    /// Reads the publish entries of every group, and the subscriptions of one.
    ///
    /// # Errors
    /// When a template has an unknown placeholder, which validation refuses before.
    pub fn new(plan: &RunPlan, group: usize, filters: &FilterIndex) -> Result<Self, UnknownPlaceholder> {
        let username = plan.spec.broker.credentials.username.as_deref().map(Template::parse).transpose()?;
        let mut sources = Vec::new();
        for (spec, planned) in plan.spec.groups.iter().zip(&plan.groups) {
            let client_id = Template::parse(&spec.client_id)?;
            for entry in &spec.publish {
                let topic = filters::expand(&Template::parse(&entry.topic)?, &spec.name, &client_id, username.as_ref());
                sources.push(Source {
                    schedule: publish_schedule(spec, entry),
                    start_number: u64::try_from(spec.start_number).unwrap_or(0),
                    clients: u64::from(planned.clients),
                    topic: filters::levels(&topic),
                    qos: u8::try_from(entry.qos).unwrap_or(0),
                    max_behind: entry.max_behind.as_nanos(),
                });
            }
        }
        let count = plan.spec.groups.get(group).map_or(0, |spec| spec.subscribe.len());
        Ok(Self { sources, members: (0..count).map(|i| filters.members(group, i)).collect() })
    }

    /// Most deliveries that a client with these filters (and their QoS, in the order of the group's subscriptions) may have
    /// missed. With `kept` its session was kept meanwhile, so that only QoS 0 may be missing.
    pub fn deliveries(&self, subscriptions: &[(String, u8)], kept: bool, span: Span) -> u64 {
        self.sources.iter().map(|source| self.of_source(source, subscriptions, kept, span)).sum()
    }

    fn of_source(&self, source: &Source, subscriptions: &[(String, u8)], kept: bool, span: Span) -> u64 {
        let from = span.from.saturating_sub(source.max_behind).max(span.floor);
        if from >= span.to {
            return 0;
        }
        let (mut shared, mut plain, mut safe) = (0, Set::default(), Set::default());
        for ((filter, qos), members) in subscriptions.iter().zip(&self.members) {
            let is_safe = kept && source.qos.min(*qos) > 0;
            let publishers = source.publishers(filter);
            if filter.starts_with("$share/") {
                // Brokers deal a share's messages out to those who are there. That this happens evenly is assumed; with all
                // members away everything is excused.
                if !is_safe {
                    shared += source.slots(publishers, from, span.to).div_ceil(*members);
                }
            } else {
                plain.add(publishers);
                if is_safe {
                    safe.add(publishers);
                }
            }
        }
        shared + plain.slots(source, from, span.to).saturating_sub(safe.slots(source, from, span.to))
    }
}

/// Publishers whose messages several filters of one client match: each message is one delivery.
#[derive(Default)]
struct Set {
    all: bool,
    some: BTreeSet<u64>,
}

impl Set {
    fn add(&mut self, publishers: Publishers) {
        match publishers {
            Publishers::Nobody => {}
            Publishers::One(rank) => _ = self.some.insert(rank),
            Publishers::All => self.all = true,
        }
    }

    fn slots(&self, source: &Source, from: u64, to: u64) -> u64 {
        if self.all {
            return source.slots(Publishers::All, from, to);
        }
        self.some.iter().map(|rank| source.slots(Publishers::One(*rank), from, to)).sum()
    }
}

impl Source {
    /// Slots due within a time.
    fn slots(&self, publishers: Publishers, from: u64, to: u64) -> u64 {
        match publishers {
            Publishers::Nobody => 0,
            Publishers::One(rank) => self.schedule.client_slots_before(rank, to) - self.schedule.client_slots_before(rank, from),
            Publishers::All => self.schedule.slots_before(to) - self.schedule.slots_before(from),
        }
    }

    /// Whose messages a filter, shared or plain, matches (MQTT 5.0 section 4.7).
    fn publishers(&self, filter: &str) -> Publishers {
        let filter = filters::unshared(filter);
        let dollar =
            matches!(self.topic.first().and_then(|level| level.first()), Some(Piece::Text(text)) if text.starts_with('$'));
        if dollar && filter.starts_with(['#', '+']) {
            return Publishers::Nobody;
        }
        let mut number = None;
        let (mut topic, mut filter) = (self.topic.iter(), filter.split('/'));
        loop {
            match (filter.next(), topic.next()) {
                (Some("#"), _) | (None, None) => break,
                (Some("+"), Some(_)) => {}
                (Some(text), Some(level)) => match fit(level, text) {
                    Fit::No => return Publishers::Nobody,
                    Fit::Number(n) if number.is_some_and(|other| other != n) => return Publishers::Nobody,
                    Fit::Number(n) => number = Some(n),
                    Fit::Yes => {}
                },
                _ => return Publishers::Nobody,
            }
        }
        match number.map(|n: u64| n.checked_sub(self.start_number).filter(|rank| *rank < self.clients)) {
            None => Publishers::All,
            Some(Some(rank)) => Publishers::One(rank),
            Some(None) => Publishers::Nobody,
        }
    }
}

/// Whether a level of a topic can be a text.
enum Fit {
    No,
    /// It is, or may be, whatever the client's number.
    Yes,
    /// For the client with this number.
    Number(u64),
}

fn fit(level: &[Piece], text: &str) -> Fit {
    let prefix = match level.first() {
        None if text.is_empty() => return Fit::Yes,
        None => return Fit::No,
        Some(Piece::Text(prefix)) if level.len() == 1 => return if prefix == text { Fit::Yes } else { Fit::No },
        Some(Piece::Text(prefix)) => prefix,
        Some(_) => "",
    };
    let suffix = if let Some(Piece::Text(suffix)) = level.last() { suffix } else { "" };
    let Some(open) = text.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix)) else { return Fit::No };
    if level.iter().filter(|piece| !matches!(piece, Piece::Text(_))).count() > 1 || !level.contains(&Piece::Number) {
        return Fit::Yes;
    }
    // A number has one spelling.
    open.parse().ok().filter(|n: &u64| n.to_string() == open).map_or(Fit::No, Fit::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt_loadtest_crds::plan::RunIdentity;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const SECOND: u64 = 1_000_000_000;

    fn run(groups: Value) -> RunPlan {
        let spec = json!({"broker": {"endpoints": ["mqtt://b"], "credentials": {"username": "u-%c"}}, "groups": groups});
        let identity = RunIdentity { namespace: String::new(), name: "t".into(), uid: "u".into(), id: "1".into() };
        RunPlan::new(identity, serde_json::from_value(spec).unwrap())
    }

    fn excuses(groups: Value) -> Excuses {
        let plan = run(groups);
        Excuses::new(&plan, 0, &FilterIndex::new(&plan).unwrap()).unwrap()
    }

    /// Ten publishers, each one message a second, to subscribers with some filters.
    fn with(topic: &str, filters: &[&str]) -> Excuses {
        let subscribe: Vec<_> = filters.iter().enumerate().map(|(i, f)| json!({"name": format!("s{i}"), "filter": f})).collect();
        excuses(json!([
            {"name": "subs", "clients": 5, "clientId": "s-%i", "subscribe": subscribe},
            {"name": "pubs", "clients": 10, "startNumber": 100, "clientId": "p-%i",
             "publish": [{"name": "p", "topic": topic, "qos": 1, "interval": "1s", "maxBehind": "2s"}]}
        ]))
    }

    fn missed(excuses: &Excuses, filters: &[(&str, u8)], kept: bool, from: u64, to: u64, floor: u64) -> u64 {
        let filters: Vec<_> = filters.iter().map(|(filter, qos)| ((*filter).to_owned(), *qos)).collect();
        excuses.deliveries(&filters, kept, Span { from: from * SECOND, to: to * SECOND, floor: floor * SECOND })
    }

    #[test]
    fn what_is_due_while_a_client_is_away_is_excused_once_whatever_filters_overlap() {
        let all = with("t/%i", &["t/#", "t/+", "t/103"]);
        let filters = [("t/#", 1), ("t/+", 1), ("t/103", 1)];
        assert_eq!(missed(&all, &filters, false, 10, 15, 0), 70, "two seconds more, as messages may be two seconds late");
        assert_eq!(missed(&all, &filters, false, 10, 15, 9), 60, "but not what was settled before");
        assert_eq!(missed(&all, &filters, false, 15, 15, 15), 0);
        assert_eq!(missed(&all, &[("t/103", 1), ("t/104", 1), ("t/99", 1)], false, 10, 15, 10), 10, "of two publishers");
        assert_eq!(missed(&all, &[("other/#", 1)], false, 10, 15, 0), 0);
    }

    #[test]
    fn a_kept_session_excuses_what_is_delivered_at_qos_0_only() {
        let all = with("t/%i", &["t/#", "t/103"]);
        assert_eq!(missed(&all, &[("t/#", 1)], true, 10, 15, 10), 0);
        assert_eq!(missed(&all, &[("t/#", 0)], true, 10, 15, 10), 50);
        assert_eq!(missed(&all, &[("t/#", 0), ("t/103", 2)], true, 10, 15, 10), 45, "one publisher's come at a higher QoS");
    }

    #[test]
    fn members_of_a_share_are_excused_of_their_part() {
        let shared = with("t/%i", &["$share/a/t/#", "t/100"]);
        assert_eq!(missed(&shared, &[("$share/a/t/#", 1)], false, 10, 15, 10), 10, "a fifth of 50");
        assert_eq!(missed(&shared, &[("$share/a/t/#", 1), ("t/100", 1)], false, 10, 15, 10), 15);
    }

    proptest! {
        #[test]
        fn no_delivery_that_is_missed_stays_unexcused(
            topic in proptest::sample::select(vec!["t/%i", "%i/t", "t/x%iy/z", "%c/%u", "t/%i/%i", "t", "$x/%i", "t/%s", "t//%i", "%{shard}/%i", "%{group}/a"]),
            filter in proptest::sample::select(vec!["#", "+/+", "t/#", "t/+", "t/101", "t/0101", "101/t", "t/x102y/+", "p-103/+", "+/u-p-103",
                "t/101/101", "t/101/102", "t", "$x/+", "$x/101", "t//101", "0/104", "1/+", "pubs/a", "+/a/#", "t/5", "$share/n/t/#"]),
            from in 0u64..8, length in 0u64..6,
        ) {
            let plan = run(json!([
                {"name": "subs", "clients": 1, "subscribe": [{"name": "s", "filter": filter}]},
                {"name": "pubs", "clients": 9, "startNumber": 98, "clientId": "p-%i", "shards": {"count": 2},
                 "publish": [{"name": "p", "topic": topic, "interval": "700ms", "maxBehind": "0s"}]}
            ]));
            let excuses = Excuses::new(&plan, 0, &FilterIndex::new(&plan).unwrap()).unwrap();
            let (from, to) = (from * SECOND, (from + length) * SECOND);
            let schedule = publish_schedule(&plan.spec.groups[1], &plan.spec.groups[1].publish[0]);
            let (mut exact, mut any) = (0, 0);
            for rank in 0..9u64 {
                for n in 0..30u64 {
                    let due = schedule.due(rank, n);
                    let client_id = format!("p-{}", 98 + rank);
                    let username = format!("u-{client_id}");
                    let values = mqtt_loadtest_crds::template::Values {
                        number: 98 + rank, client_id: &client_id, username: &username, sequence: n, group: "pubs", shard: (rank % 2) as u32,
                    };
                    let is_due = (from..to).contains(&due);
                    any += u64::from(is_due);
                    exact += u64::from(is_due && filters::matches(filter, &Template::parse(topic).unwrap().render(&values)));
                }
            }
            let excused = excuses.deliveries(&[(filter.to_owned(), 1)], false, Span { from, to, floor: 0 });
            prop_assert!(excused >= exact && excused <= any, "{excused} for {exact} of {any}");
            if !topic.contains("%s") && !topic.contains("%{shard}") {
                prop_assert_eq!(excused, exact);
            }
        }
    }
}
