//! What a manifest takes from Secrets and ConfigMaps, which a run without a cluster cannot read: given as files, or the password
//! as an environment variable.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use mqtt_loadtest_crds::spec::{Broker, Endpoint};
use mqtt_loadtest_worker::engine::secrets::Secrets;

const PASSWORD: &str = "MQTT_LOADTEST_PASSWORD";

/// Files in place of Secrets and ConfigMaps.
#[derive(clap::Args, Debug, Default)]
pub(super) struct SecretFiles {
    /// File with the password where the manifest takes it from a Secret; without it the environment variable
    /// MQTT_LOADTEST_PASSWORD is used.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// PEM file with the certificate authority of the broker, in place of the manifest's caFrom or of the public roots.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// PEM file with the clients' certificate chain, in place of the manifest's clientCertificateFrom.
    #[arg(long, value_name = "FILE", requires = "client_key_file")]
    client_certificate_file: Option<PathBuf>,
    /// PEM file with the private key of that certificate.
    #[arg(long, value_name = "FILE", requires = "client_certificate_file")]
    client_key_file: Option<PathBuf>,
}

impl SecretFiles {
    /// Reads what the manifest asks for. Certificates are asked for only where an endpoint uses TLS.
    ///
    /// # Errors
    /// Every file that is missing or cannot be read, with what to do.
    pub(super) fn read(&self, broker: &Broker) -> Result<Secrets, Vec<String>> {
        let uses_tls = broker.endpoints.iter().any(|text| Endpoint::parse(text).is_ok_and(|endpoint| endpoint.scheme.is_tls()));
        let tls = broker.tls.as_ref().filter(|_| uses_tls);
        let mut problems = Vec::new();
        let mut file = |flag: &str, file: &Option<PathBuf>, missing: Option<String>| match (file, missing) {
            (Some(file), _) => read(flag, file).map_err(|problem| problems.push(problem)).ok(),
            (None, Some(source)) => {
                problems.push(format!("{source}, which a run without a cluster cannot read: give it with {flag} FILE"));
                None
            }
            (None, None) => None,
        };
        let ca = tls.and_then(|tls| tls.ca_from.as_ref()).map(|from| {
            let source = from.secret.as_ref().map(|key| ("Secret", key));
            match source.or(from.config_map.as_ref().map(|key| ("ConfigMap", key))) {
                Some((kind, key)) => format!("spec.broker.tls.caFrom: names key {} of {kind} {}", key.key, key.name),
                None => "spec.broker.tls.caFrom: names nothing".into(),
            }
        });
        let certificate = tls
            .and_then(|tls| tls.client_certificate_from.as_ref())
            .map(|from| format!("spec.broker.tls.clientCertificateFrom: names Secret {}", from.secret.name));
        let ca = file("--ca-file", &self.ca_file, ca);
        let client_certificate = file("--client-certificate-file", &self.client_certificate_file, certificate);
        let client_key = file("--client-key-file", &self.client_key_file, None);
        let password = self.password(broker).unwrap_or_else(|problem| {
            problems.push(problem);
            None
        });
        if problems.is_empty() { Ok(Secrets { password, ca, client_certificate, client_key }) } else { Err(problems) }
    }

    fn password(&self, broker: &Broker) -> Result<Option<String>, String> {
        let Some(source) = &broker.credentials.password_from else { return Ok(None) };
        if let Some(file) = &self.password_file {
            let text = String::from_utf8(read("--password-file", file)?)
                .map_err(|_| format!("--password-file {}: is not UTF-8", file.display()))?;
            return Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()));
        }
        env::var(PASSWORD).map(Some).map_err(|_| {
            let secret = &source.secret;
            format!(
                "spec.broker.credentials.passwordFrom: names key {} of Secret {}, which a run without a cluster cannot read: \
                 give the password in the environment variable {PASSWORD} or with --password-file FILE",
                secret.key, secret.name
            )
        })
    }
}

fn read(flag: &str, file: &Path) -> Result<Vec<u8>, String> {
    fs::read(file).map_err(|error| format!("{flag} {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_manifest_takes_from_secrets_is_asked_for_as_files_where_tls_is_used() {
        let broker = |endpoint: &str| -> Broker {
            serde_json::from_value(json!({"endpoints": [endpoint], "tls": {
                "caFrom": {"configMap": {"name": "trust", "key": "ca.crt"}}, "clientCertificateFrom": {"secret": {"name": "device"}}}}))
            .unwrap()
        };
        let problems = SecretFiles::default().read(&broker("mqtts://b")).unwrap_err();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("key ca.crt of ConfigMap trust") && problems[0].contains("--ca-file"), "{problems:?}");
        assert!(problems[1].contains("Secret device") && problems[1].contains("--client-certificate-file"), "{problems:?}");
        assert!(SecretFiles::default().read(&broker("mqtt://b")).is_ok());
        let here = Some(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")));
        let files = SecretFiles {
            ca_file: here.clone(),
            client_certificate_file: here.clone(),
            client_key_file: here,
            password_file: None,
        };
        let secrets = files.read(&broker("mqtts://b")).unwrap();
        assert!(secrets.ca.is_some() && secrets.client_certificate.is_some() && secrets.client_key.is_some());
    }
}
