//! Why clients could not connect, in words: which share of them failed for which reason.

use mqtt_loadtest_worker::accounting::{Counter, Snapshot};

use super::Totals;

/// Reasons that are the load generator's own.
const OF_THE_GENERATOR: [Counter; 2] = [Counter::ConnectNoFileDescriptors, Counter::ConnectNoSourcePorts];

/// Failed connects and subscriptions by reason, most frequent first.
pub fn by_reason(counts: &Snapshot) -> Vec<(&'static str, u64)> {
    let mut reasons = counts.by_label("connects_failed");
    reasons.extend(counts.by_label("subscribes_failed"));
    reasons.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    reasons
}

/// A share as people read it: `12.5 %`; `100 %` only when it is everything.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".into();
    }
    if part >= whole {
        return "100 %".into();
    }
    let tenths = u128::from(part) * 1000 / u128::from(whole);
    if tenths == 0 && part > 0 {
        return "under 0.1 %".into();
    }
    if tenths % 10 == 0 { format!("{} %", tenths / 10) } else { format!("{}.{} %", tenths / 10, tenths % 10) }
}

/// The reasons with their shares. Where each missing client failed once the shares are of clients; where clients tried again,
/// of their attempts.
pub fn in_words(totals: &Totals, missing: u64) -> String {
    let reasons = by_reason(&totals.all);
    let sum: u64 = reasons.iter().map(|(_, count)| count).sum();
    if sum == 0 {
        return String::new();
    }
    let list: Vec<String> = reasons.iter().take(5).map(|(reason, count)| format!("{} {reason}", share(*count, sum))).collect();
    let list = list.join(", ");
    if sum == missing { list } else { format!("of {sum} failed attempts {list}") }
}

/// The most frequent reason as a condition's reason (CamelCase); `ClientsNotConnected` when there is none.
pub fn reason(totals: &Totals) -> String {
    match by_reason(&totals.all).first() {
        Some((reason, _)) => camel_case(reason),
        None => "ClientsNotConnected".into(),
    }
}

/// `badUserNameOrPassword` -> `BadUserNameOrPassword`.
pub fn camel_case(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map(|first| first.to_ascii_uppercase().to_string() + letters.as_str()).unwrap_or_default()
}

/// Whether most failures are the load generator's own.
pub fn are_the_generators(totals: &Totals) -> bool {
    let own: u64 = OF_THE_GENERATOR.iter().map(|counter| totals.all.get(*counter)).sum();
    let all: u64 = by_reason(&totals.all).iter().map(|(_, count)| count).sum();
    own * 2 > all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_rounded_to_all_or_nothing() {
        assert_eq!(share(1000, 1000), "100 %");
        assert_eq!(share(999_999, 1_000_000), "99.9 %");
        assert_eq!(share(1, 1_000_000), "under 0.1 %");
        assert_eq!(share(0, 5), "0 %");
        assert_eq!(share(1, 8), "12.5 %");
        assert_eq!(share(1, 4), "25 %");
    }

    #[test]
    fn reasons_become_condition_reasons() {
        assert_eq!(camel_case("badUserNameOrPassword"), "BadUserNameOrPassword");
    }
}
