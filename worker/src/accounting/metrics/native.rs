//! Reading one native histogram. Whoever sends it may lie about spans, lengths and sums, so nothing is added up before all of
//! it was checked.

use super::INFINITE_BUCKET;
use super::decode::{Limits, Problem};
use super::wire::{self, Message, Value};
use crate::accounting::{Histogram, MAX_SCHEMA, MIN_SCHEMA};

/// What is read before it is believed; used again for each histogram.
#[derive(Default)]
pub(super) struct Scratch {
    spans: Vec<(i64, u64)>,
    deltas: Vec<i64>,
    buckets: Vec<(i32, u64)>,
}

/// Reads a `Histogram` message.
pub(super) fn histogram(wire: Value<'_>, limits: &Limits, scratch: &mut Scratch) -> Result<Histogram, Problem> {
    let Scratch { spans, deltas, buckets } = scratch;
    spans.clear();
    deltas.clear();
    buckets.clear();
    let (mut schema, mut samples, mut sum, mut zero) = (0, 0, 0.0, 0);
    for field in wire.message()? {
        match field? {
            (1, value) => samples = value.unsigned()?,
            (2, value) => sum = value.double()?,
            (4 | 8, value) if value.double()? != 0.0 => return Err(NOT_INTEGER.into()),
            (5, value) => schema = value.signed()?,
            (7, value) => zero = value.unsigned()?,
            (9 | 14, _) => return Err(NOT_INTEGER.into()),
            (12, value) => spans.push(span(value.message()?)?),
            (13, value) => wire::each_signed(value, |delta| deltas.push(delta))?,
            _ => {}
        }
    }
    let schema = u8::try_from(schema).ok().filter(|s| (MIN_SCHEMA..=MAX_SCHEMA).contains(s)).ok_or("unknown schema")?;
    if !(0.0..1e18).contains(&sum) {
        return Err("impossible sum".into());
    }
    let infinite_bucket = i64::from(((INFINITE_BUCKET - 1) >> (MAX_SCHEMA - schema)) + 1);
    let length = spans.iter().fold(0u64, |sum, (_, length)| sum.saturating_add(*length));
    if length != deltas.len() as u64 || length > limits.buckets as u64 {
        return Err("spans and counts differ, or too many buckets".into());
    }
    let (mut index, mut value, mut infinite, mut deltas) = (0i64, 0i64, 0, deltas.iter());
    for (offset, length) in spans.iter() {
        index += offset;
        for delta in deltas.by_ref().take(*length as usize) {
            value = value.checked_add(*delta).filter(|v| *v >= 0).ok_or("negative bucket")?;
            if index == infinite_bucket {
                infinite = value as u64;
            } else {
                buckets.push((i32::try_from(index).map_err(|_| "bucket out of range")?, value as u64));
            }
            index += 1;
        }
    }
    let sum_ns = (sum * 1e9).round() as u128;
    let histogram = Histogram::from_parts(schema, buckets, zero, infinite, sum_ns).ok_or("bucket out of range")?;
    if histogram.count() == samples { Ok(histogram) } else { Err("count and buckets differ".into()) }
}

const NOT_INTEGER: &str = "not an integer histogram of durations";

/// A `BucketSpan`: 32-bit offset and length, so that sums over an exposition stay far from 64 bits.
fn span(span: Message<'_>) -> Result<(i64, u64), Problem> {
    let (mut offset, mut length) = (0, 0);
    for field in span {
        match field? {
            (1, value) => offset = i32::try_from(value.signed()?).map_err(|_| "impossible span")?,
            (2, value) => length = u32::try_from(value.unsigned()?).map_err(|_| "impossible span")?,
            _ => {}
        }
    }
    Ok((i64::from(offset), u64::from(length)))
}
