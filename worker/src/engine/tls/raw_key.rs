//! A handshake's signature checked with the public key of a certificate that the usual helpers refuse to parse (X.509 version 1).
//! Only the place of the key within the certificate is looked for; nothing else of it is believed.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use rustls::{CertificateError, DigitallySignedStruct, Error, PeerMisbehaved};
use webpki::RawPublicKeyEntity;

const SEQUENCE: u8 = 0x30;
/// `[0] EXPLICIT`, the version, which version 1 leaves out.
const VERSION: u8 = 0xa0;

/// Checks a signature.
pub(super) fn verify(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let bad = || Error::InvalidCertificate(CertificateError::BadEncoding);
    let key = SubjectPublicKeyInfoDer::from(public_key(cert).ok_or_else(bad)?);
    let key = RawPublicKeyEntity::try_from(&key).map_err(|_| bad())?;
    let (_, candidates) = algorithms
        .mapping
        .iter()
        .find(|(scheme, _)| *scheme == dss.scheme)
        .ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
    if candidates.iter().any(|algorithm| key.verify_signature(*algorithm, message, dss.signature()).is_ok()) {
        Ok(HandshakeSignatureValid::assertion())
    } else {
        Err(Error::InvalidCertificate(CertificateError::BadSignature))
    }
}

/// The SubjectPublicKeyInfo of a certificate (RFC 5280 section 4.1).
fn public_key(certificate: &[u8]) -> Option<&[u8]> {
    let (certificate, _) = element(certificate, Some(SEQUENCE))?;
    let (mut fields, _) = element(certificate.content, Some(SEQUENCE)).map(|(tbs, rest)| (tbs.content, rest))?;
    if fields.first() == Some(&VERSION) {
        fields = element(fields, Some(VERSION))?.1;
    }
    // Serial number, signature algorithm, issuer, validity, subject.
    for _ in 0..5 {
        fields = element(fields, None)?.1;
    }
    Some(element(fields, Some(SEQUENCE))?.0.whole)
}

struct Element<'a> {
    whole: &'a [u8],
    content: &'a [u8],
}

/// Splits the first DER element off some bytes. `None` when it is cut off or has another tag.
fn element(bytes: &[u8], tag: Option<u8>) -> Option<(Element<'_>, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    if tag.is_some_and(|tag| tag != first) {
        return None;
    }
    let (&short, rest) = rest.split_first()?;
    let (length, rest) = if short < 0x80 {
        (usize::from(short), rest)
    } else {
        let count = usize::from(short & 0x7f);
        if count == 0 || count > 3 {
            return None;
        }
        let (digits, rest) = rest.split_at_checked(count)?;
        (digits.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
    };
    let (content, after) = rest.split_at_checked(length)?;
    Some((Element { whole: &bytes[..bytes.len() - after.len()], content }, after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_key_of_a_certificate_is_found() {
        let made = rcgen::generate_simple_self_signed(["b".to_owned()]).unwrap();
        let certificate = made.cert.der();
        let expected = webpki::EndEntityCert::try_from(certificate).unwrap().subject_public_key_info();
        assert_eq!(public_key(certificate), Some(expected.as_ref()));
        for cut in 0..certificate.len() {
            assert_eq!(public_key(&certificate[..cut]), None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = public_key(&bytes);
        }
    }
}
