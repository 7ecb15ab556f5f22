//! Broker addresses: `mqtt://host:port`.

use std::fmt;

/// How a connection is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// MQTT over TCP, port 1883.
    Mqtt,
}

impl Scheme {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "mqtt" => Some(Self::Mqtt),
            _ => None,
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Mqtt => 1883,
        }
    }
}

/// A parsed endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// How the connection is carried.
    pub scheme: Scheme,
    /// Host name, IPv4 address, or IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Endpoint {
    /// Reads `mqtt://host:port`; an IPv6 address stands in brackets (RFC 3986 section 3.2.2).
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not a broker address: write mqtt://HOST:PORT, for example mqtt://broker:1883");
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let scheme = Scheme::parse(scheme).ok_or_else(|| format!("\"{text}\" has an unknown scheme: known is mqtt://"))?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = if let Some(bracketed) = authority.strip_prefix('[') {
            let (host, after) = bracketed.split_once(']').ok_or_else(wrong)?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':').ok_or_else(wrong)?) })
        } else {
            match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            }
        };
        if host.is_empty() || host.contains(['/', '@', '?', ' ']) {
            return Err(wrong());
        }
        let port = match port {
            None => scheme.default_port(),
            Some(port) => {
                port.parse().ok().filter(|port| *port != 0).ok_or_else(|| format!("\"{text}\": the port must be 1 to 65535"))?
            }
        };
        Ok(Self { scheme, host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "mqtt://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "mqtt://{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_a_host_and_a_port() {
        let parsed = |text| Endpoint::parse(text).map(|e| (e.host, e.port));
        assert_eq!(parsed("mqtt://b"), Ok(("b".into(), 1883)));
        assert_eq!(parsed("mqtt://b.ns.svc:1884/"), Ok(("b.ns.svc".into(), 1884)));
        assert_eq!(parsed("mqtt://[::1]:1884"), Ok(("::1".into(), 1884)));
        assert_eq!(parsed("mqtt://[::1]"), Ok(("::1".into(), 1883)));
        for wrong in ["b:1883", "mqtt://", "mqtt://b:0", "mqtt://b:x", "mqtt://user@b", "mqtt://[b]", "ftp://b", "mqtt://::1"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
