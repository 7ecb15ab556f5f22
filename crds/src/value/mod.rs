//! Scalar values of the manifest: each is written as text (or a number), keeps the text it was written as, and is
//! parsed once, exactly.

mod byte_size;
mod duration;
mod percent;
mod rate;

pub use byte_size::ByteSize;
pub(crate) use duration::PATTERN as DURATION_PATTERN;
pub use duration::TestDuration;
pub use percent::Percent;
pub use rate::Rate;

/// A value of the manifest that cannot be read; the message says what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(pub(crate) String);

/// Splits `12.5` into digits without the point and the number of fractional digits, at most 18 digits in all.
fn decimal(text: &str) -> Option<(u64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || (text.contains('.') && fraction.is_empty()) {
        return None;
    }
    if whole.len() + fraction.len() > 18 {
        return None;
    }
    let value = format!("{whole}{fraction}").parse().ok()?;
    Some((value, u32::try_from(fraction.len()).ok()?))
}
