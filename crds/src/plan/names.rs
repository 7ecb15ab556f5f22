//! Names of child objects. A Job's name is refused when it has dots or 62 characters or more (its pods would pass the 63 of a
//! label, <https://kubernetes.io/docs/concepts/overview/working-with-objects/names/>), while a custom resource may have 253
//! characters with dots; so names are cut and made unique by a hash.

use sha2::{Digest, Sha256};

use super::RunIdentity;
use crate::hash::hex;

/// Name of a child object of a run: `<name up to 30>-<part up to 12>-<hash8>`, a DNS label of at most 52 characters.
pub fn child_name(run: &RunIdentity, part: &str) -> String {
    let hash = short_hash(&[&run.uid, &run.id, &run.name, part]);
    format!("{}-{}-{hash}", label(&run.name, 30), label(part, 12))
}

/// Eight hexadecimal digits that stand for some texts.
pub fn short_hash(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    hex(&digest.finalize()[..4])
}

/// The first characters of a name as a DNS label.
fn label(name: &str, longest: usize) -> String {
    let safe: String =
        name.chars().take(longest).map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    let trimmed = safe.trim_matches('-');
    if trimmed.is_empty() { "x".into() } else { trimmed.into() }
}
