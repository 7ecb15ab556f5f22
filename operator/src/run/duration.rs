//! Durations as people and thresholds read them: `850us`, `12.3ms`, `1.5s`, `+Inf`. Three digits, as the histograms have not
//! more.

/// A latency in nanoseconds.
pub fn nanos(ns: u64) -> String {
    seconds(ns as f64 / 1e9)
}

/// A latency in seconds; infinite is what never came.
pub fn seconds(seconds: f64) -> String {
    if seconds.is_infinite() {
        return "+Inf".into();
    }
    for (unit, size) in [("s", 1.0), ("ms", 1e-3), ("us", 1e-6)] {
        // What would be rounded up to 1000 of a smaller unit is one of this.
        if seconds >= size * 0.9995 {
            return three_digits(seconds / size) + unit;
        }
    }
    three_digits(seconds * 1e9) + "ns"
}

fn three_digits(value: f64) -> String {
    let decimals = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_have_three_digits_and_the_unit_that_fits() {
        for (ns, text) in [
            (0, "0ns"),
            (999, "999ns"),
            (1_000, "1us"),
            (12_345, "12.3us"),
            (850_000, "850us"),
            (999_600, "1ms"),
            (12_345_678, "12.3ms"),
            (1_500_000_000, "1.5s"),
            (75_000_000_000, "75s"),
        ] {
            assert_eq!(nanos(ns), text);
        }
        assert_eq!(seconds(f64::INFINITY), "+Inf");
    }

    proptest! {
        #[test]
        fn a_written_duration_is_within_half_a_percent(ns in 1u64..10_000_000_000_000) {
            let text = nanos(ns);
            let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap();
            let unit = match &text[at..] { "s" => 1e9, "ms" => 1e6, "us" => 1e3, _ => 1.0 };
            let back = text[..at].parse::<f64>().unwrap() * unit;
            prop_assert!((back / ns as f64 - 1.0).abs() <= 0.0051, "{} {}", ns, text);
        }
    }
}
