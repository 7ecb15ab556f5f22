//! A snapshot in at most 4,096 bytes: what a container leaves as its termination message, so that a run survives an
//! operator outage at its end.
//!
//! Varints, deflate, base64. Where that does not fit, the histograms step down to coarser schemas, which is exact in
//! counts and coarser in percentiles; the decoded histogram tells its schema. The last resort leaves the histograms out.

use super::{Counter, Fingerprint, Gauge, Histogram, MAX_SCHEMA, MIN_SCHEMA, Snapshot, Stage};
use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use std::io::{Read, Write};

/// Kubernetes keeps the last 4,096 bytes of a termination message
/// (<https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/>).
pub const MAX_BYTES: usize = 4096;
/// How a summary begins, which tells it from an error message in the same place.
pub const PREFIX: &str = "mqtt-loadtest/1:";
/// A summary of all tables is far below this; more is hostile.
const MAX_UNPACKED: u64 = 256 * 1024;

/// Why a text is not a summary.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// It does not begin with [`PREFIX`]: perhaps an error message of the worker.
    #[error("not a summary: it does not begin with {PREFIX:?}")]
    NotASummary,
    /// It is damaged, truncated or from another version.
    #[error("the summary cannot be read ({0}); was it written by another version of the worker?")]
    Damaged(&'static str),
}

/// Packs a snapshot. The result has at most [`MAX_BYTES`] bytes.
pub fn encode(snapshot: &Snapshot) -> String {
    for schema in (MIN_SCHEMA..=MAX_SCHEMA).rev() {
        let text = pack(&serialize(&snapshot.downscale(schema), true));
        if text.len() <= MAX_BYTES {
            return text;
        }
    }
    pack(&serialize(snapshot, false))
}

/// Reads a summary back.
///
/// # Errors
/// See [`Error`]; nothing in the text can make this allocate more than a bounded amount.
pub fn decode(text: &str) -> Result<Snapshot, Error> {
    let packed = text.trim().strip_prefix(PREFIX).ok_or(Error::NotASummary)?;
    let deflated = STANDARD_NO_PAD.decode(packed).map_err(|_| Error::Damaged("base64"))?;
    let mut bytes = Vec::new();
    flate2::read::DeflateDecoder::new(&deflated[..])
        .take(MAX_UNPACKED)
        .read_to_end(&mut bytes)
        .map_err(|_| Error::Damaged("deflate"))?;
    deserialize(&mut Reader(&bytes))
}

fn pack(bytes: &[u8]) -> String {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    // Writing to memory does not fail; if it ever did, the decoder would say so.
    let deflated = encoder.write_all(bytes).and_then(|()| encoder.finish()).unwrap_or_default();
    format!("{PREFIX}{}", STANDARD_NO_PAD.encode(deflated))
}

fn put(out: &mut Vec<u8>, mut value: u128) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, u128::from(((value << 1) ^ (value >> 63)) as u64));
}

fn serialize(snapshot: &Snapshot, with_histograms: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 * 1024);
    for length in [Counter::COUNT, Gauge::COUNT, Fingerprint::COUNT, Stage::COUNT] {
        put(&mut out, length as u128);
    }
    Counter::ALL.iter().for_each(|c| put(&mut out, u128::from(snapshot.get(*c))));
    Gauge::ALL.iter().for_each(|g| put_signed(&mut out, snapshot.gauge(*g)));
    Fingerprint::ALL.iter().for_each(|f| put(&mut out, u128::from(snapshot.fingerprint(*f))));
    for stage in Stage::ALL {
        put(&mut out, u128::from(snapshot.maximum_ns(*stage)));
        let histogram = snapshot.histogram(*stage);
        put(&mut out, u128::from(with_histograms));
        if !with_histograms {
            continue;
        }
        put(&mut out, u128::from(histogram.schema()));
        put(&mut out, u128::from(histogram.zero()));
        put(&mut out, u128::from(histogram.infinite()));
        put(&mut out, histogram.sum_ns());
        put(&mut out, histogram.buckets().count() as u128);
        let mut last = 0;
        for (index, count) in histogram.buckets() {
            put_signed(&mut out, i64::from(index - last));
            put(&mut out, u128::from(count));
            last = index;
        }
    }
    out
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn wide(&mut self) -> Result<u128, Error> {
        let mut value = 0u128;
        for shift in (0..128).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(Error::Damaged("truncated"))?;
            self.0 = rest;
            let part = u128::from(byte & 0x7f);
            if shift == 126 && part > 3 {
                break;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::Damaged("number too long"))
    }

    fn unsigned(&mut self) -> Result<u64, Error> {
        u64::try_from(self.wide()?).map_err(|_| Error::Damaged("number too large"))
    }

    fn signed(&mut self) -> Result<i64, Error> {
        let value = self.unsigned()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

fn deserialize(reader: &mut Reader<'_>) -> Result<Snapshot, Error> {
    for length in [Counter::COUNT, Gauge::COUNT, Fingerprint::COUNT, Stage::COUNT] {
        if reader.unsigned()? != length as u64 {
            return Err(Error::Damaged("other tables"));
        }
    }
    let mut snapshot = Snapshot::new();
    for counter in Counter::ALL {
        snapshot.set(*counter, reader.unsigned()?);
    }
    for gauge in Gauge::ALL {
        snapshot.set_gauge(*gauge, reader.signed()?);
    }
    for fingerprint in Fingerprint::ALL {
        snapshot.set_fingerprint(*fingerprint, reader.unsigned()?);
    }
    for stage in Stage::ALL {
        let maximum = reader.unsigned()?;
        let histogram = if reader.unsigned()? == 0 { Histogram::new() } else { histogram(reader)? };
        snapshot.set_stage(*stage, histogram, maximum);
    }
    if reader.0.is_empty() { Ok(snapshot) } else { Err(Error::Damaged("trailing bytes")) }
}

fn histogram(reader: &mut Reader<'_>) -> Result<Histogram, Error> {
    let schema = u8::try_from(reader.unsigned()?).map_err(|_| Error::Damaged("schema"))?;
    let (zero, infinite, sum_ns) = (reader.unsigned()?, reader.unsigned()?, reader.wide()?);
    let mut buckets = Vec::new();
    let mut index = 0i64;
    for _ in 0..reader.unsigned()? {
        index = index.checked_add(reader.signed()?).ok_or(Error::Damaged("bucket"))?;
        buckets.push((i32::try_from(index).map_err(|_| Error::Damaged("bucket"))?, reader.unsigned()?));
    }
    Histogram::from_parts(schema, &buckets, zero, infinite, sum_ns).ok_or(Error::Damaged("bucket"))
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::tests::snapshots;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn histograms_wider_than_any_real_one_still_fit_with_all_counts() {
        let mut snapshot = Snapshot::new();
        let mut state = 1u64;
        for stage in Stage::ALL {
            for _ in 0..200_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Log-uniform over 20 doublings: much wider than any real latency, so the worst case.
                let ns = 1u64 << (10 + (state >> 59) % 20) | (state >> 40) & 0x3ff;
                snapshot.record(*stage, ns + (state >> 33) % (ns + 1));
            }
        }
        Counter::ALL.iter().for_each(|c| snapshot.set(*c, state >> (*c as u16 % 50)));
        let text = encode(&snapshot);
        assert!(text.len() <= MAX_BYTES, "{}", text.len());
        let again = decode(&text).unwrap();
        let schema = again.histogram(Stage::PublishAck).schema();
        assert_eq!(again, snapshot.downscale(schema));
        assert_eq!(again.histogram(Stage::PublishAck).count(), 200_000);
    }

    #[test]
    fn an_error_message_is_not_taken_for_a_summary() {
        assert_eq!(decode("refused: 20,000 clients need 20,010 file descriptors"), Err(Error::NotASummary));
        assert!(matches!(decode("mqtt-loadtest/1:AAAA"), Err(Error::Damaged(_))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn a_summary_reads_back_as_the_snapshot_at_its_schema(snapshot in snapshots()) {
            let again = decode(&encode(&snapshot)).unwrap();
            let schema = again.histogram(Stage::EngineLag).schema();
            let lossless = again.histogram(Stage::EngineLag).count() == snapshot.histogram(Stage::EngineLag).count();
            prop_assert!(lossless);
            prop_assert_eq!(again, snapshot.downscale(schema));
        }

        #[test]
        fn damaged_text_is_an_error_and_never_a_panic(snapshot in snapshots(), at in 0usize..4096, with in any::<u8>()) {
            let mut bytes = encode(&snapshot).into_bytes();
            let at = at % bytes.len();
            bytes[at] = with;
            let _ = decode(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn any_payload_after_the_prefix_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&pack(&bytes));
        }
    }
}
