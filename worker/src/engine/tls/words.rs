//! What an error of TLS means for the person at the manifest, and as which cause it is counted.

use crate::engine::cause::Cause;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

/// Cause and words for an error of a connection.
pub fn explain(error: &Error) -> (Cause, String) {
    match error {
        Error::InvalidCertificate(certificate) => {
            (Cause::TlsCertificate, format!("the broker's certificate {}", why(certificate)))
        }
        Error::NoCertificatesPresented => (Cause::TlsCertificate, "the broker presented no certificate".into()),
        Error::InvalidMessage(InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion) => {
            (Cause::TlsOnPlainPort, "what answers does not speak TLS: use mqtt:// or ws://, or the port for TLS".into())
        }
        Error::AlertReceived(alert) => of_alert(*alert),
        Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13) => {
            (Cause::TlsRefused, "the broker offers neither TLS 1.2 nor TLS 1.3".into())
        }
        Error::PeerIncompatible(what) => {
            (Cause::TlsRefused, format!("the broker's TLS and ours have nothing in common: {what:?}"))
        }
        other => (Cause::TlsFailed, format!("TLS failed: {other}")),
    }
}

fn of_alert(alert: AlertDescription) -> (Cause, String) {
    use AlertDescription as Alert;
    match alert {
        Alert::CertificateRequired | Alert::NoCertificate => (
            Cause::TlsClientCertificate,
            "the broker asks for a client certificate: name one in spec.broker.tls.clientCertificateFrom".into(),
        ),
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::AccessDenied
        | Alert::DecryptError => (Cause::TlsClientCertificate, format!("the broker refused our client certificate ({alert:?})")),
        Alert::UnrecognisedName => (
            Cause::TlsRefused,
            "the broker has no certificate for the name that was asked for: set spec.broker.tls.serverName".into(),
        ),
        // TLS 1.2 has no alert of its own for a certificate that was asked for and not given.
        Alert::HandshakeFailure => (
            Cause::TlsRefused,
            "the broker refused the TLS handshake: no common cipher suite, or it asks for a client certificate".into(),
        ),
        Alert::ProtocolVersion | Alert::InsufficientSecurity | Alert::NoApplicationProtocol => {
            (Cause::TlsRefused, format!("the broker refused the TLS handshake ({alert:?})"))
        }
        _ => (Cause::TlsFailed, format!("the broker ended TLS with the alert {alert:?}")),
    }
}

fn why(error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => {
            "is signed by an authority that is not trusted: name its CA in spec.broker.tls.caFrom".into()
        }
        CertificateError::Expired => "has expired".into(),
        CertificateError::ExpiredContext { time, not_after } => {
            format!("expired {} ago", age(time.as_secs().saturating_sub(not_after.as_secs())))
        }
        CertificateError::NotValidYet => "is not valid yet: are the clocks right?".into(),
        CertificateError::NotValidYetContext { time, not_before } => {
            format!("becomes valid only in {}: are the clocks right?", age(not_before.as_secs().saturating_sub(time.as_secs())))
        }
        CertificateError::NotValidForName => "is for another name: set spec.broker.tls.serverName".into(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            // They come as DnsName("broker.example") and IpAddress(127.0.0.1).
            let bare = |name: &String| name.rsplit_once('(').map_or(name.as_str(), |(_, bare)| bare).replace(['"', ')'], "");
            let presented: Vec<String> = presented.iter().map(bare).collect();
            let presented = if presented.is_empty() { "no name at all".into() } else { presented.join(", ") };
            format!(
                "is for {presented}, not for {}: set spec.broker.tls.serverName, or verification: CertificateOnly",
                expected.to_str()
            )
        }
        CertificateError::BadSignature => "is not signed by the authority that it names".into(),
        CertificateError::Revoked => "was revoked".into(),
        CertificateError::BadEncoding => "cannot be parsed".into(),
        other => format!("was not accepted: {other}"),
    }
}

/// A length of time in its largest unit.
fn age(seconds: u64) -> String {
    let (number, unit) = match seconds {
        0..120 => (seconds, "s"),
        120..7_200 => (seconds / 60, "minutes"),
        7_200..172_800 => (seconds / 3_600, "hours"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{number} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::{ServerName, UnixTime};
    use std::time::Duration;

    #[test]
    fn certificate_errors_say_what_to_change() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        for (error, words) in [
            (CertificateError::UnknownIssuer, "caFrom"),
            (CertificateError::ExpiredContext { time: at(864_000), not_after: at(0) }, "expired 10 days ago"),
            (CertificateError::NotValidYetContext { time: at(0), not_before: at(90) }, "only in 90 s"),
            (
                CertificateError::NotValidForNameContext {
                    expected: ServerName::try_from("b.example").unwrap(),
                    presented: vec!["DnsName(\"a.example\")".into(), "IpAddress(::1)".into()],
                },
                "is for a.example, ::1, not for b.example",
            ),
        ] {
            let (cause, told) = explain(&Error::InvalidCertificate(error));
            assert_eq!(cause, Cause::TlsCertificate);
            assert!(told.contains(words), "{told}");
        }
    }
}
