//! Broker addresses: `mqtt://host:port`, `mqtts://host:port`, `ws://host:port/path`, `wss://host:port/path`.

use std::fmt;

/// How a connection is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// MQTT over TCP, port 1883.
    Mqtt,
    /// MQTT over TLS, port 8883.
    Mqtts,
    /// MQTT over WebSocket, port 80 (RFC 6455 section 3).
    Ws,
    /// MQTT over WebSocket over TLS, port 443.
    Wss,
}

impl Scheme {
    const ALL: [Self; 4] = [Self::Mqtt, Self::Mqtts, Self::Ws, Self::Wss];

    fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Mqtts => "mqtts",
            Self::Ws => "ws",
            Self::Wss => "wss",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Mqtt => 1883,
            Self::Mqtts => 8883,
            Self::Ws => 80,
            Self::Wss => 443,
        }
    }

    /// Whether connections are encrypted.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Mqtts | Self::Wss)
    }

    /// Whether MQTT travels in WebSocket frames.
    pub fn is_web_socket(self) -> bool {
        matches!(self, Self::Ws | Self::Wss)
    }
}

/// Path of a WebSocket endpoint that names none.
const DEFAULT_PATH: &str = "/mqtt";

/// A parsed endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// How the connection is carried.
    pub scheme: Scheme,
    /// Host name, IPv4 address, or IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Path and query of the WebSocket upgrade; empty without WebSocket.
    pub path: String,
}

impl Endpoint {
    /// Reads an address; an IPv6 address stands in brackets (RFC 3986 section 3.2.2).
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("\"{text}\" is not a broker address: write mqtt://HOST:PORT, for example mqtt://broker:1883");
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let scheme = Scheme::ALL
            .into_iter()
            .find(|known| known.name() == scheme)
            .ok_or_else(|| format!("\"{text}\" has an unknown scheme: known are mqtt://, mqtts://, ws:// and wss://"))?;
        let (authority, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
        let path = match (scheme.is_web_socket(), path) {
            (false, "" | "/") => String::new(),
            (false, _) => return Err(format!("\"{text}\" has a path, which only ws:// and wss:// have")),
            (true, "") => DEFAULT_PATH.to_owned(),
            (true, path) if path.contains(|c: char| c == '#' || !c.is_ascii_graphic()) => {
                return Err(format!("\"{text}\": the path may not hold spaces, fragments or characters beyond ASCII"));
            }
            (true, path) if path.starts_with('?') => format!("/{path}"),
            (true, path) => path.to_owned(),
        };
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
        if host.is_empty() || host.contains(|c: char| matches!(c, '@' | '#') || c.is_whitespace() || c.is_control()) {
            return Err(wrong());
        }
        let port = match port {
            None => scheme.default_port(),
            Some(port) => {
                port.parse().ok().filter(|port| *port != 0).ok_or_else(|| format!("\"{text}\": the port must be 1 to 65535"))?
            }
        };
        Ok(Self { scheme, host: host.to_owned(), port, path })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, host, port, path) = (self.scheme.name(), &self.host, self.port, &self.path);
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}{path}")
        } else {
            write!(f, "{scheme}://{host}:{port}{path}")
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
        for wrong in [
            "b:1883",
            "mqtt://",
            "mqtt://b:0",
            "mqtt://b:x",
            "mqtt://user@b",
            "mqtt://[b]",
            "ftp://b",
            "mqtt://::1",
            "mqtt://b/x",
            "ws://b/a b",
            "ws://b/#x",
            "ws:///mqtt",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_scheme_has_its_port_and_web_sockets_have_a_path() {
        for (text, whole) in [
            ("mqtts://b", "mqtts://b:8883"),
            ("ws://b", "ws://b:80/mqtt"),
            ("wss://[::1]:8084/", "wss://[::1]:8084/"),
            ("wss://b/a/b?c=d", "wss://b:443/a/b?c=d"),
            ("ws://b:8083?c", "ws://b:8083/?c"),
        ] {
            assert_eq!(Endpoint::parse(text).map(|e| e.to_string()), Ok(whole.to_owned()), "{text}");
            assert_eq!(Endpoint::parse(whole).map(|e| e.to_string()), Ok(whole.to_owned()), "{whole}");
        }
    }
}
