//! What comes from mounted Secrets and ConfigMaps: read once at the start, never in a log, a metric or a `Debug` text.

use std::fmt;

/// Everything secret that a shard's clients need. Empty where the manifest names none.
#[derive(Clone, Default)]
pub struct Secrets {
    /// The password of every client.
    pub password: Option<String>,
    /// Certificate authorities in PEM, in place of the public roots.
    pub ca: Option<Vec<u8>>,
    /// The clients' certificate chain in PEM.
    pub client_certificate: Option<Vec<u8>>,
    /// Its private key in PEM.
    pub client_key: Option<Vec<u8>>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}
