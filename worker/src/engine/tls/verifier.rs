//! What is checked of a broker's certificate where that is less than everything. The whole check (chain, dates and name) is
//! rustls's own verifier.

use super::raw_key;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use std::sync::Arc;

/// Checks chain and dates, and takes every name.
#[derive(Debug)]
pub struct AnyName {
    inner: Arc<WebPkiServerVerifier>,
}

impl AnyName {
    /// On top of the whole check.
    pub fn new(inner: Arc<WebPkiServerVerifier>) -> Self {
        Self { inner }
    }
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is compared last, when everything else was found good.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Takes every certificate. That the server holds its private key is still checked, as every client does, so that a handshake
/// costs what it costs.
#[derive(Debug)]
pub struct Unchecked {
    algorithms: WebPkiSupportedAlgorithms,
}

impl Unchecked {
    /// With the signatures that a provider knows.
    pub fn new(algorithms: WebPkiSupportedAlgorithms) -> Self {
        Self { algorithms }
    }
}

/// Whether an error says that a certificate could not be parsed, and not that a signature is wrong. X.509 version 1, which
/// many a home-made broker certificate has, is not parsed by the usual helpers.
fn is_unparsed(error: &Error) -> bool {
    matches!(error, Error::InvalidCertificate(CertificateError::BadEncoding | CertificateError::Other(_)))
}

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match verify_tls12_signature(message, cert, dss, &self.algorithms) {
            Err(error) if is_unparsed(&error) => raw_key::verify(message, cert, dss, &self.algorithms),
            other => other,
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match verify_tls13_signature(message, cert, dss, &self.algorithms) {
            Err(error) if is_unparsed(&error) => raw_key::verify(message, cert, dss, &self.algorithms),
            other => other,
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
