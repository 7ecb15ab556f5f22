//! TLS as all clients of a shard use it: one configuration, made once. Driving a connection is in
//! [`super::transport`], what is checked of the broker's certificate in [`verifier`], errors in words in [`words`].

mod raw_key;
pub mod verifier;
pub mod words;

use super::secrets::Secrets;
use mqtt_loadtest_crds::spec::{Resumption, Tls, Verification};
use rustls::client::{Resumption as Sessions, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;

/// The TLS configuration of a shard.
#[derive(Debug)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    per_client: bool,
}

impl TlsClient {
    /// Makes the configuration from the manifest and the mounted certificates.
    ///
    /// # Errors
    /// A sentence that says which certificate cannot be used and why.
    pub fn new(tls: &Tls, secrets: &Secrets) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS cannot be set up: {error}"))?
            .dangerous()
            .with_custom_certificate_verifier(verifier(tls.verification, secrets, provider)?);
        let mut config = match (&secrets.client_certificate, &secrets.client_key) {
            (Some(chain), Some(key)) => {
                let chain = certificates(chain, "the clients' certificate (tls.crt)")?;
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|error| format!("the clients' private key (tls.key) cannot be read: {error}"))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| format!("the clients' certificate and private key cannot be used: {error}"))?
            }
            (None, None) => builder.with_no_client_auth(),
            _ => return Err("a client certificate needs both its chain (tls.crt) and its private key (tls.key)".into()),
        };
        // One shared store of session tickets would let clients resume each other's sessions.
        config.resumption = Sessions::disabled();
        Ok(Self { config: Arc::new(config), per_client: tls.resumption == Resumption::PerClient })
    }

    /// The configuration for a connection of one client. `own` keeps what belongs to that client alone: its sessions.
    pub fn config(&self, own: &mut Option<Arc<ClientConfig>>) -> Arc<ClientConfig> {
        if !self.per_client {
            return self.config.clone();
        }
        own.get_or_insert_with(|| {
            let mut config = ClientConfig::clone(&self.config);
            config.resumption = Sessions::in_memory_sessions(1);
            Arc::new(config)
        })
        .clone()
    }
}

fn verifier(
    verification: Verification,
    secrets: &Secrets,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::client::danger::ServerCertVerifier>, String> {
    if verification == Verification::None {
        return Ok(Arc::new(verifier::Unchecked::new(provider.signature_verification_algorithms)));
    }
    let mut roots = RootCertStore::empty();
    match &secrets.ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(pem) => {
            for certificate in certificates(pem, "the certificate authority (tls.caFrom)")? {
                roots
                    .add(certificate)
                    .map_err(|error| format!("the certificate authority (tls.caFrom) cannot be used: {error}"))?;
            }
        }
    }
    let checked = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| format!("the certificate authority (tls.caFrom) cannot be used: {error}"))?;
    Ok(match verification {
        Verification::CertificateOnly => Arc::new(verifier::AnyName::new(checked)),
        Verification::Full | Verification::None => checked,
    })
}

/// All certificates of a PEM text; there must be one at least.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match all {
        Ok(all) if all.is_empty() => Err(format!("{what} holds no PEM certificate")),
        Ok(all) => Ok(all),
        Err(error) => Err(format!("{what} is not PEM: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued() -> (String, String) {
        let key = rcgen::generate_simple_self_signed(["b".to_owned()]).unwrap();
        (key.cert.pem(), key.signing_key.serialize_pem())
    }

    #[test]
    fn what_is_wrong_with_certificates_is_told_by_the_manifests_names() {
        let (certificate, key) = issued();
        let (_, other_key) = issued();
        let some = |text: &str| Some(text.as_bytes().to_vec());
        let with = |ca: Option<Vec<u8>>, client_certificate: Option<Vec<u8>>, client_key: Option<Vec<u8>>| {
            TlsClient::new(&Tls::default(), &Secrets { ca, client_certificate, client_key, password: None })
        };
        assert!(with(None, None, None).is_ok());
        assert!(with(some(&certificate), some(&certificate), some(&key)).is_ok());
        for (made, named) in [
            (with(some(""), None, None), "tls.caFrom"),
            (with(some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), None, None), "tls.caFrom"),
            (with(None, some(&certificate), None), "tls.key"),
            (with(None, some(&certificate), some(&certificate)), "tls.key"),
            (with(None, some(&certificate), some(&other_key)), "private key cannot be used"),
        ] {
            let error = made.unwrap_err();
            assert!(error.contains(named), "{named}: {error}");
        }
    }

    #[test]
    fn clients_share_one_configuration_unless_each_resumes_its_own_sessions() {
        let shared = TlsClient::new(&Tls::default(), &Secrets::default()).unwrap();
        let (mut a, mut b) = (None, None);
        assert!(Arc::ptr_eq(&shared.config(&mut a), &shared.config(&mut b)));
        let tls = Tls { resumption: Resumption::PerClient, ..Tls::default() };
        let own = TlsClient::new(&tls, &Secrets::default()).unwrap();
        assert!(!Arc::ptr_eq(&own.config(&mut a), &own.config(&mut b)));
        assert!(Arc::ptr_eq(&own.config(&mut a), &own.config(&mut a)));
    }
}
