//! The bearer token of a run's workers.
//!
//! It is derived, not stored: an operator that was restarted has it again from its key, the object's UID and the run.

use hkdf::Hkdf;
use sha2::Sha256;
use std::fmt;
use subtle::ConstantTimeEq;

/// A bearer token. Its `Debug` form does not show it.
#[derive(Clone)]
pub struct Token(String);

/// Derives the token: HKDF-SHA256 (RFC 5869) of the operator's key, with the custom resource's UID as the salt and the run
/// in the info, in hexadecimal.
pub fn token(key: &[u8], uid: &str, run_id: &str) -> Token {
    let mut output = [0; 32];
    let info = format!("mqtt-loadtest control token {run_id}");
    let expanded = Hkdf::<Sha256>::new(Some(uid.as_bytes()), key).expand(info.as_bytes(), &mut output);
    // HKDF-SHA256 expands to at most 8,160 bytes; 32 always fit.
    debug_assert!(expanded.is_ok());
    Token(output.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Token {
    /// A token that was read from a mounted Secret; white space around it is dropped.
    pub fn from_text(text: &str) -> Token {
        Token(text.trim().to_owned())
    }

    /// The secret itself, for a header or a Secret.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether an `Authorization` header carries this token. The comparison takes the same time wherever they differ; an
    /// empty token admits nobody.
    pub fn admits(&self, authorization: Option<&str>) -> bool {
        let given = authorization.and_then(|header| header.strip_prefix("Bearer ")).unwrap_or_default();
        !self.0.is_empty() && bool::from(given.as_bytes().ct_eq(self.0.as_bytes()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_run_has_the_same_token_and_another_run_another() {
        let of = |key: &[u8], uid, run| token(key, uid, run).expose().to_owned();
        assert_eq!(of(b"key", "uid", "1-ab"), of(b"key", "uid", "1-ab"));
        assert_ne!(of(b"key", "uid", "1-ab"), of(b"key", "uid", "2-ab"));
        assert_ne!(of(b"key", "uid", "1-ab"), of(b"key", "other", "1-ab"));
        assert_ne!(of(b"key", "uid", "1-ab"), of(b"yek", "uid", "1-ab"));
        assert_eq!(of(b"key", "uid", "1-ab").len(), 64);
    }

    #[test]
    fn only_the_whole_token_in_a_bearer_header_is_admitted() {
        let token = Token::from_text("secret\n");
        assert!(token.admits(Some("Bearer secret")));
        for header in
            [None, Some(""), Some("secret"), Some("Bearer "), Some("Bearer secre"), Some("Bearer secrets"), Some("bearer secret")]
        {
            assert!(!token.admits(header), "{header:?}");
        }
        assert!(!Token::from_text("").admits(Some("Bearer ")));
        assert!(!format!("{token:?}").contains("secret"));
    }
}
