//! Certificates made for one test: an authority, and what it issues.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd,
};
use std::path::{Path, PathBuf};

/// An authority, and a directory for its files.
pub struct Authority<'a> {
    issuer: CertifiedIssuer<'a, KeyPair>,
    dir: &'a Path,
}

/// A certificate and its key, as files.
pub struct Issued {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl<'a> Authority<'a> {
    pub fn new(dir: &'a Path, name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(dir.join(format!("{name}.pem")), issuer.as_ref().pem()).unwrap();
        Self { issuer, dir }
    }

    /// Its own certificate.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.pem"))
    }

    /// A certificate for some names, valid now.
    pub fn issue(&self, file: &str, names: &[&str]) -> Issued {
        self.issue_until(file, names, 2100)
    }

    /// One that ends with a year.
    pub fn issue_until(&self, file: &str, names: &[&str], year: i32) -> Issued {
        let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        params.distinguished_name.push(DnType::CommonName, file);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let issued = Issued { certificate: self.dir.join(format!("{file}.crt")), key: self.dir.join(format!("{file}.key")) };
        std::fs::write(&issued.certificate, certificate.pem()).unwrap();
        std::fs::write(&issued.key, key.serialize_pem()).unwrap();
        issued
    }
}

/// A self-signed certificate of X.509 version 1, as `openssl` makes one without extensions.
pub fn version_1(dir: &Path) -> Issued {
    let issued = Issued { certificate: dir.join("v1.crt"), key: dir.join("v1.key") };
    let run = |args: &[&str]| {
        let output = std::process::Command::new("openssl").args(args).current_dir(dir).output().expect("openssl is installed");
        assert!(output.status.success(), "openssl {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=v1", "-keyout", "v1.key", "-out", "v1.csr"]);
    run(&["x509", "-req", "-in", "v1.csr", "-signkey", "v1.key", "-days", "2", "-out", "v1.crt"]);
    issued
}

impl Issued {
    /// The lines of a mosquitto listener that presents it.
    pub fn listener(&self, port: u16, ca: &Path) -> String {
        format!(
            "listener {port} 127.0.0.1\ncafile {}\ncertfile {}\nkeyfile {}\n",
            ca.display(),
            self.certificate.display(),
            self.key.display()
        )
    }
}
