//! How many deliveries a published message must and may have: the multiplicity that the plan's own subscriptions give it.
//!
//! One plain subscription of one client is one delivery; a shared subscription is one for each (share name, filter). Where
//! several filters of one client match, brokers may deliver once or once for each (MQTT 5.0 section 3.3.4), so the result
//! is a pair of bounds. Filters with the client's number in them are not enumerated: the number is read off the topic.

use mqtt_loadtest_crds::plan::RunPlan;
use mqtt_loadtest_crds::template::{Part, Placeholder, Template, UnknownPlaceholder};
use std::collections::HashSet;
use std::fmt::Write;

/// Bounds on the deliveries of one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Multiplicity {
    /// At least so many.
    pub min: u32,
    /// At most so many.
    pub max: u32,
}

/// Most clients of a group that are enumerated where a number cannot be read off a topic; over that the lower bound is 0.
const ENUMERATED: u64 = 20_000;

/// All subscriptions of a plan.
#[derive(Debug)]
pub struct FilterIndex {
    groups: Vec<Members>,
}

#[derive(Debug)]
struct Members {
    clients: u64,
    start_number: u64,
    shards: u64,
    patterns: Vec<Pattern>,
}

/// A filter as text with the client's number and shard left open.
#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    share: bool,
    pieces: Vec<Piece>,
}

/// A piece of a filter or topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Text without placeholders.
    Text(String),
    /// The client's number.
    Number,
    /// Its shard.
    Shard,
    /// The message's number; topics only.
    Sequence,
}

/// Which clients a filter that matches belongs to.
enum Owners {
    Everyone,
    Shard(u64),
    Number(u64),
}

impl FilterIndex {
    /// Reads the subscriptions of every group.
    ///
    /// # Errors
    /// When a template has an unknown placeholder, which validation refuses before.
    pub fn new(plan: &RunPlan) -> Result<Self, UnknownPlaceholder> {
        let username = plan.spec.broker.credentials.username.as_deref().map(Template::parse).transpose()?;
        let mut groups = Vec::new();
        for (group, planned) in plan.spec.groups.iter().zip(&plan.groups) {
            let client_id = Template::parse(&group.client_id)?;
            let mut patterns = Vec::new();
            for subscribe in &group.subscribe {
                let pieces = expand(&Template::parse(&subscribe.filter)?, &group.name, &client_id, username.as_ref());
                let share = matches!(pieces.first(), Some(Piece::Text(text)) if text.starts_with("$share/"));
                patterns.push(Pattern { share, pieces });
            }
            groups.push(Members {
                clients: u64::from(planned.clients),
                start_number: u64::try_from(group.start_number).unwrap_or(0),
                shards: u64::from(planned.shards.max(1)),
                patterns,
            });
        }
        Ok(Self { groups })
    }

    /// The deliveries of a message to `topic`.
    pub fn multiplicity(&self, topic: &str) -> Multiplicity {
        let (mut min, mut max) = (0u64, 0u64);
        let mut shares = HashSet::new();
        for group in &self.groups {
            let (mut everyone, mut shards, mut numbers) = (false, HashSet::new(), HashSet::new());
            for pattern in &group.patterns {
                if pattern.share {
                    group.each_match(pattern, topic, |text, _| {
                        shares.insert(text.to_owned());
                    });
                    continue;
                }
                let known = group.each_match(pattern, topic, |_, owners| {
                    max += match owners {
                        Owners::Everyone => group.clients,
                        Owners::Shard(s) => group.members_of(s),
                        Owners::Number(_) => 1,
                    };
                    match owners {
                        Owners::Everyone => everyone = true,
                        Owners::Shard(s) => _ = shards.insert(s),
                        Owners::Number(n) => _ = numbers.insert(n),
                    }
                });
                if !known {
                    max += group.clients;
                }
            }
            min += if everyone {
                group.clients
            } else {
                let in_shards: u64 = shards.iter().map(|s| group.members_of(*s)).sum();
                let others = numbers.iter().filter(|n| !shards.contains(&((*n - group.start_number) % group.shards))).count();
                in_shards + others as u64
            };
        }
        let shared = shares.len() as u64;
        let clamp = |n: u64| u32::try_from(n + shared).unwrap_or(u32::MAX);
        Multiplicity { min: clamp(min), max: clamp(max) }
    }

    /// Over how many clients the messages of a group's subscription are dealt, at least: 1 unless it is shared.
    pub(super) fn members(&self, group: usize, subscription: usize) -> u64 {
        let Some(own) = self.groups.get(group) else { return 1 };
        let Some(pattern) = own.patterns.get(subscription).filter(|pattern| pattern.share) else { return 1 };
        let members = if pattern.pieces.contains(&Piece::Number) {
            1
        } else if pattern.pieces.contains(&Piece::Shard) {
            own.clients / own.shards
        } else {
            self.groups.iter().filter(|other| other.patterns.contains(pattern)).map(|other| other.clients).sum()
        };
        members.max(1)
    }
}

impl Members {
    fn members_of(&self, shard: u64) -> u64 {
        if shard >= self.clients { 0 } else { (self.clients - shard).div_ceil(self.shards) }
    }

    /// Calls `found` with the text and the owners of every form of a pattern that matches. False when there are too many
    /// forms to tell.
    fn each_match(&self, pattern: &Pattern, topic: &str, mut found: impl FnMut(&str, Owners)) -> bool {
        let mut text = String::new();
        let by_number = pattern.pieces.contains(&Piece::Number);
        let by_shard = pattern.pieces.contains(&Piece::Shard);
        let mut check = |number: u64, shard: u64, owners: Owners| {
            text.clear();
            pattern.render(number, shard, &mut text);
            if matches(&text, topic) {
                found(&text, owners);
            }
        };
        if !by_number && !by_shard {
            check(0, 0, Owners::Everyone);
        } else if !by_number {
            (0..self.shards).for_each(|s| check(0, s, Owners::Shard(s)));
        } else if let Some(numbers) = pattern.numbers_in(topic) {
            for number in numbers {
                if (self.start_number..self.start_number + self.clients).contains(&number) {
                    check(number, (number - self.start_number) % self.shards, Owners::Number(number));
                }
            }
        } else if self.clients <= ENUMERATED {
            for rank in 0..self.clients {
                check(self.start_number + rank, rank % self.shards, Owners::Number(self.start_number + rank));
            }
        } else {
            return false;
        }
        true
    }
}

impl Pattern {
    fn render(&self, number: u64, shard: u64, out: &mut String) {
        for piece in &self.pieces {
            // Writing to a String cannot fail.
            let _ = match piece {
                Piece::Text(text) => out.write_str(text),
                Piece::Number => write!(out, "{number}"),
                Piece::Shard => write!(out, "{shard}"),
                Piece::Sequence => Ok(()),
            };
        }
    }

    /// The number that a topic must have come from, read off a level in which nothing else is open. An empty list when no
    /// number fits, `None` when there is no such level.
    fn numbers_in(&self, topic: &str) -> Option<Vec<u64>> {
        let mut levels = levels(&self.pieces);
        if self.share {
            levels.drain(..levels.len().min(2));
        }
        let position = levels.iter().position(|level| {
            level.iter().filter(|p| **p == Piece::Number).count() == 1 && !level.contains(&Piece::Shard) && level.len() <= 3
        })?;
        // Before a wildcard of several levels, positions agree; `#` can only be the last level.
        let level = topic.split('/').nth(position);
        let number = level.and_then(|level| {
            let mut rest = level;
            let at = levels[position].iter().position(|p| *p == Piece::Number)?;
            for piece in &levels[position][..at] {
                rest = rest.strip_prefix(text(piece))?;
            }
            for piece in levels[position][at + 1..].iter().rev() {
                rest = rest.strip_suffix(text(piece))?;
            }
            rest.parse().ok()
        });
        Some(number.into_iter().collect())
    }
}

fn text(piece: &Piece) -> &str {
    if let Piece::Text(text) = piece { text } else { "" }
}

/// The levels of a topic or filter; an empty level has no pieces.
pub(super) fn levels(pieces: &[Piece]) -> Vec<Vec<Piece>> {
    let (mut levels, mut level) = (Vec::new(), Vec::new());
    for piece in pieces {
        let Piece::Text(text) = piece else {
            level.push(piece.clone());
            continue;
        };
        for (i, part) in text.split('/').enumerate() {
            if i > 0 {
                levels.push(std::mem::take(&mut level));
            }
            if !part.is_empty() {
                level.push(Piece::Text(part.to_owned()));
            }
        }
    }
    levels.push(level);
    levels
}

/// A template with everything filled in that is the same for all clients of a group.
pub(super) fn expand(t: &Template, group: &str, client_id: &Template, username: Option<&Template>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    expand_into(t, group, client_id, username, 0, &mut pieces);
    pieces
}

fn expand_into(t: &Template, group: &str, client_id: &Template, username: Option<&Template>, depth: u8, out: &mut Vec<Piece>) {
    let literal = |text: &str, out: &mut Vec<Piece>| match out.last_mut() {
        Some(Piece::Text(last)) => last.push_str(text),
        _ => out.push(Piece::Text(text.to_owned())),
    };
    for part in t.parts() {
        match part {
            Part::Literal(text) => literal(text, out),
            Part::Placeholder(Placeholder::Group) => literal(group, out),
            Part::Placeholder(Placeholder::Number) => out.push(Piece::Number),
            Part::Placeholder(Placeholder::Shard) => out.push(Piece::Shard),
            Part::Placeholder(Placeholder::Sequence) => out.push(Piece::Sequence),
            // A client id does not name itself, nor a user name; the depth is a belt to those braces.
            Part::Placeholder(Placeholder::ClientId) if depth < 2 => {
                expand_into(client_id, group, client_id, username, depth + 1, out)
            }
            Part::Placeholder(Placeholder::Username) if depth < 2 => {
                if let Some(username) = username {
                    expand_into(username, group, client_id, None, depth + 1, out);
                }
            }
            Part::Placeholder(_) => {}
        }
    }
}

/// A filter without the name of its share (MQTT 5.0 section 4.8.2).
pub(super) fn unshared(filter: &str) -> &str {
    match filter.strip_prefix("$share/") {
        Some(rest) => rest.split_once('/').map_or("", |(_, filter)| filter),
        None => filter,
    }
}

/// Whether a filter, shared or plain, matches a topic name (MQTT 5.0 section 4.7).
pub fn matches(filter: &str, topic: &str) -> bool {
    let filter = unshared(filter);
    // Wildcards in the first level do not match topics that begin with $ (MQTT-4.7.2-1).
    if topic.starts_with('$') && filter.starts_with(['#', '+']) {
        return false;
    }
    let mut topic = topic.split('/');
    let mut filter = filter.split('/');
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) => return true,
            (Some("+"), Some(_)) => {}
            (Some(a), Some(b)) if a == b => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mqtt_loadtest_crds::plan::RunIdentity;
    use proptest::prelude::*;
    use serde_json::json;

    fn index(groups: serde_json::Value) -> FilterIndex {
        let spec = serde_json::from_value(
            json!({"broker": {"endpoints": ["mqtt://b"], "credentials": {"username": "u-%c"}}, "groups": groups}),
        )
        .unwrap();
        let run = RunIdentity { namespace: String::new(), name: "t".into(), uid: "u".into(), id: "1".into() };
        FilterIndex::new(&RunPlan::new(run, spec)).unwrap()
    }

    fn subscribers(clients: u32, filters: &[&str]) -> serde_json::Value {
        let subscribe: Vec<_> = filters.iter().enumerate().map(|(i, f)| json!({"name": format!("s{i}"), "filter": f})).collect();
        json!({"name": format!("g{clients}"), "clients": clients, "startNumber": 10, "clientId": "dev-%i", "subscribe": subscribe,
            "shards": {"count": 3}})
    }

    fn of(index: &FilterIndex, topic: &str) -> (u32, u32) {
        let m = index.multiplicity(topic);
        (m.min, m.max)
    }

    #[test]
    fn plain_filters_count_clients_and_wildcards_match() {
        let index = index(json!([subscribers(500, &["t"]), subscribers(7, &["bench/#"])]));
        assert_eq!(of(&index, "t"), (500, 500));
        assert_eq!(of(&index, "bench/1"), (7, 7));
        assert_eq!(of(&index, "bench"), (7, 7));
        assert_eq!(of(&index, "other"), (0, 0));
    }

    #[test]
    fn a_number_in_the_filter_belongs_to_one_client() {
        let index = index(json!([subscribers(100, &["bench/%i"])]));
        assert_eq!(of(&index, "bench/10"), (1, 1));
        assert_eq!(of(&index, "bench/109"), (1, 1));
        for other in ["bench/9", "bench/110", "bench/010", "bench/x", "bench", "bench/10/x"] {
            assert_eq!(of(&index, other), (0, 0), "{other}");
        }
    }

    #[test]
    fn client_ids_user_names_and_shards_are_expanded() {
        let index = index(json!([subscribers(100, &["a/%c/+", "b/%u", "c/%{shard}"])]));
        assert_eq!(of(&index, "a/dev-10/x"), (1, 1));
        assert_eq!(of(&index, "b/u-dev-11"), (1, 1));
        assert_eq!(of(&index, "c/0"), (34, 34));
        assert_eq!(of(&index, "c/3"), (0, 0));
    }

    #[test]
    fn overlapping_filters_of_one_client_give_bounds() {
        let index = index(json!([subscribers(10, &["a/#", "a/+", "a/%i"])]));
        assert_eq!(of(&index, "a/x"), (10, 20));
        assert_eq!(of(&index, "a/12"), (10, 21));
    }

    #[test]
    fn a_shared_subscription_is_one_delivery_for_each_name_and_filter() {
        let index =
            index(json!([subscribers(10, &["$share/one/a/#", "a/b"]), subscribers(5, &["$share/one/a/#", "$share/two/a/#"])]));
        assert_eq!(of(&index, "a/b"), (12, 12));
    }

    #[test]
    fn wildcards_in_the_first_level_leave_system_topics_alone() {
        assert!(!matches("#", "$SYS/broker"));
        assert!(matches("$SYS/#", "$SYS/broker"));
        assert!(matches("+/+", "/x"));
        assert!(!matches("a/+", "a"));
        assert!(matches("a/+", "a/"));
    }

    proptest! {
        #[test]
        fn reading_the_number_off_agrees_with_trying_every_client(
            filter in proptest::sample::select(vec!["%i/x", "x/%i", "p%iq/+", "x%i", "%c/#", "%i/%i", "%{shard}/%i", "%i%i", "%{shard}%i"]),
            clients in 1u32..60, number in 0u64..80, shape in proptest::sample::select(vec!["N/x", "x/N", "pNq/z", "xN", "dev-N/1", "N/N", "0/N", "1/N", "NN"]),
        ) {
            let index = index(json!([subscribers(clients, &[filter])]));
            let topic = shape.replace('N', &number.to_string());
            let count = (0..u64::from(clients)).filter(|rank| {
                let mut text = String::new();
                index.groups[0].patterns[0].render(10 + rank, rank % index.groups[0].shards, &mut text);
                matches(&text, &topic)
            }).count() as u32;
            prop_assert_eq!(of(&index, &topic), (count, count));
        }
    }
}
