//! MQTT in WebSocket frames (MQTT 5.0 section 6, RFC 6455) over buffers: tungstenite reads from and writes to memory. A frame
//! may hold a part of a packet or several: the frames' contents are one stream of bytes.

use super::Failure;
use crate::engine::cause::Cause;
use std::io::{self, Read, Write};
use tungstenite::client::IntoClientRequest;
use tungstenite::handshake::MidHandshake;
use tungstenite::handshake::client::{ClientHandshake, Request};
use tungstenite::http::{HeaderName, HeaderValue, StatusCode, Uri};
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Error, HandshakeError, Message, WebSocket};

/// Bytes that each connection has for reading; frames of more take what they need while they come.
const READ_BUFFER: usize = 1024;
/// Largest frame, a little over the largest MQTT packet that is taken.
const MAX_FRAME: usize = crate::engine::wire::MAX_PACKET + 64 * 1024;

/// The upgrade request of an endpoint, but for its key.
#[derive(Clone, Debug)]
pub struct Upgrade {
    uri: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Upgrade {
    /// For an address that begins with `ws://` or `wss://`, with further headers.
    ///
    /// # Errors
    /// A sentence, when address or headers are not valid in HTTP.
    pub fn new<'a>(url: &str, headers: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Self, String> {
        let uri = url.parse().map_err(|error| format!("\"{url}\" is not a WebSocket address: {error}"))?;
        let header = |(name, value): (&str, &str)| {
            let wrong = |error: &dyn std::fmt::Display| format!("the WebSocket header {name} is not valid: {error}");
            let value = HeaderValue::from_str(value).map_err(|error| wrong(&error))?;
            Ok((HeaderName::from_bytes(name.as_bytes()).map_err(|error| wrong(&error))?, value))
        };
        Ok(Self { uri, headers: headers.map(header).collect::<Result<_, String>>()? })
    }

    fn request(&self) -> Result<Request, Error> {
        let mut request = self.uri.clone().into_client_request()?;
        let headers = request.headers_mut();
        headers.insert("sec-websocket-protocol", HeaderValue::from_static("mqtt"));
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
        Ok(request)
    }
}

/// What tungstenite takes for a socket.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    input: Vec<u8>,
    taken: usize,
    output: Vec<u8>,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = &self.input[self.taken..];
        if left.is_empty() {
            (self.input, self.taken) = (Vec::new(), 0);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let length = left.len().min(buffer.len());
        buffer[..length].copy_from_slice(&left[..length]);
        self.taken += length;
        Ok(length)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The WebSocket of one connection.
#[derive(Debug)]
pub(super) enum Frames {
    /// The upgrade is under way.
    Upgrading(Box<MidHandshake<ClientHandshake<Pipe>>>),
    /// Frames flow.
    Open(Box<WebSocket<Pipe>>),
    /// The upgrade has failed.
    Failed,
}

impl Frames {
    pub(super) fn new(upgrade: &Upgrade) -> Result<Self, Failure> {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .write_buffer_size(0)
            .max_frame_size(Some(MAX_FRAME))
            .max_message_size(Some(MAX_FRAME));
        let request = upgrade.request().map_err(|error| of_upgrade(&error))?;
        let handshake = ClientHandshake::start(Pipe::default(), request, Some(config)).map_err(|error| of_upgrade(&error))?;
        Ok(Self::Upgrading(Box::new(handshake)))
    }

    /// Goes on with the upgrade with what came. True when frames may flow; what came behind the upgrade is kept for the first
    /// [`Frames::receive`].
    pub(super) fn upgrade(&mut self, bytes: &[u8], wire: &mut Vec<u8>) -> Result<bool, Failure> {
        match std::mem::replace(self, Self::Failed) {
            Self::Upgrading(mut handshake) => {
                handshake.get_mut().get_mut().input.extend_from_slice(bytes);
                match handshake.handshake() {
                    Ok((socket, _)) => {
                        *self = Self::Open(Box::new(socket));
                        Ok(true)
                    }
                    Err(HandshakeError::Interrupted(mut handshake)) => {
                        wire.append(&mut handshake.get_mut().get_mut().output);
                        *self = Self::Upgrading(Box::new(handshake));
                        Ok(false)
                    }
                    Err(HandshakeError::Failure(error)) => Err(of_upgrade(&error)),
                }
            }
            other => {
                *self = other;
                Ok(true)
            }
        }
    }

    /// Takes what came: contents of frames are appended to `mqtt`, answers (pong, close) to `wire`. True when the peer closes.
    pub(super) fn receive(&mut self, bytes: &[u8], mqtt: &mut Vec<u8>, wire: &mut Vec<u8>) -> Result<bool, Failure> {
        let Self::Open(socket) = self else { return Err(Cause::WebSocketFailed.into()) };
        socket.get_mut().input.extend_from_slice(bytes);
        let closed = loop {
            match socket.read() {
                Ok(Message::Binary(data)) => mqtt.extend_from_slice(&data),
                // MQTT is carried in binary frames only (MQTT-6.0.0-1).
                Ok(Message::Text(_)) => return Err(Cause::Protocol.into()),
                Ok(Message::Close(_)) | Err(Error::ConnectionClosed | Error::AlreadyClosed) => break true,
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => {}
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => break false,
                Err(Error::Capacity(_)) => return Err(Cause::PacketTooLarge.into()),
                Err(error) => {
                    return Err(Failure { cause: Cause::Protocol, words: Some(format!("the broker broke WebSocket: {error}")) });
                }
            }
        };
        wire.extend_from_slice(&std::mem::take(&mut socket.get_mut().output));
        Ok(closed)
    }

    /// Appends one frame with some MQTT bytes to `wire`.
    pub(super) fn send(&mut self, bytes: &[u8], wire: &mut Vec<u8>) -> io::Result<()> {
        self.write(Message::binary(bytes.to_vec()), wire)
    }

    /// Appends a close frame to `wire`.
    pub(super) fn close(&mut self, wire: &mut Vec<u8>) -> io::Result<()> {
        self.write(Message::Close(None), wire)
    }

    fn write(&mut self, message: Message, wire: &mut Vec<u8>) -> io::Result<()> {
        let Self::Open(socket) = self else { return Err(io::ErrorKind::NotConnected.into()) };
        let written = socket.write(message).and_then(|()| socket.flush());
        wire.extend_from_slice(&std::mem::take(&mut socket.get_mut().output));
        match written {
            // The peer has closed; its close frame says why, which the read side sees.
            Err(Error::ConnectionClosed | Error::AlreadyClosed | Error::Protocol(_)) => {
                Err(io::ErrorKind::ConnectionReset.into())
            }
            other => other.map_err(io::Error::other),
        }
    }
}

fn of_upgrade(error: &Error) -> Failure {
    let (cause, words) = match error {
        Error::Http(response) => {
            let status = response.status();
            // What the request asks for will not be there at the next try either, unless the server is merely busy.
            let passes = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
            let cause = if passes { Cause::WebSocketFailed } else { Cause::WebSocketRefused };
            let hint = if passes { "" } else { ": is the path of the endpoint right?" };
            (cause, format!("the server answered the WebSocket upgrade with {status}{hint}"))
        }
        Error::Protocol(error) => (Cause::WebSocketRefused, format!("the WebSocket upgrade failed: {error}")),
        Error::HttpFormat(_) | Error::Utf8(_) | Error::Url(_) => {
            (Cause::WebSocketRefused, format!("the WebSocket upgrade cannot be asked for: {error}"))
        }
        other => (Cause::WebSocketFailed, format!("the WebSocket upgrade failed: {other}")),
    };
    Failure { cause, words: Some(words) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tungstenite::handshake::derive_accept_key;
    use tungstenite::protocol::Role;

    /// A connection after its upgrade, to which the server's answer and more came as one.
    fn upgraded(behind: &[u8]) -> Frames {
        let upgrade = Upgrade::new("ws://b:8083/mqtt", [("Origin", "x")].into_iter()).unwrap();
        let mut frames = Frames::new(&upgrade).unwrap();
        let mut request = Vec::new();
        assert!(!frames.upgrade(&[], &mut request).unwrap());
        let request = String::from_utf8(request).unwrap();
        assert!(request.starts_with("GET /mqtt HTTP/1.1\r\nHost: b:8083\r\n"), "{request}");
        let key = request.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let mut answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {}\r\n\
             Sec-WebSocket-Protocol: mqtt\r\n\r\n",
            derive_accept_key(key.as_bytes())
        )
        .into_bytes();
        answer.extend_from_slice(behind);
        assert!(frames.upgrade(&answer, &mut Vec::new()).unwrap());
        frames
    }

    fn server() -> WebSocket<Pipe> {
        WebSocket::from_raw_socket(Pipe::default(), Role::Server, None)
    }

    #[test]
    fn text_is_a_protocol_error_and_a_close_ends_the_connection() {
        let mut server = server();
        server.send(Message::text("MQTT")).unwrap();
        let failure = upgraded(&[]).receive(&server.get_ref().output, &mut Vec::new(), &mut Vec::new()).unwrap_err();
        assert_eq!(failure.cause, Cause::Protocol);
        assert!(upgraded(&[]).receive(&[0x88, 0], &mut Vec::new(), &mut Vec::new()).unwrap());
    }

    #[test]
    fn a_ping_is_answered_and_what_came_behind_the_upgrade_is_not_lost() {
        let mut server = server();
        server.send(Message::Ping(b"are you there"[..].into())).unwrap();
        server.send(Message::binary(vec![0x20, 2, 0, 0])).unwrap();
        let (mut mqtt, mut answer) = (Vec::new(), Vec::new());
        assert!(!upgraded(&server.get_ref().output).receive(&[], &mut mqtt, &mut answer).unwrap());
        assert_eq!(mqtt, [0x20, 2, 0, 0]);
        server.get_mut().input = answer;
        assert_eq!(server.read().unwrap(), Message::Pong(b"are you there"[..].into()));
    }

    proptest! {
        #[test]
        fn frames_and_packets_need_not_agree_in_either_direction(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..8), chunk in 1usize..200,
        ) {
            let mut server = server();
            let mut client = upgraded(&[]);
            let (mut there, mut back) = (Vec::new(), Vec::new());
            for piece in &pieces {
                client.send(piece, &mut there).unwrap();
                server.send(Message::binary(piece.clone())).unwrap();
            }
            let mut received = Vec::new();
            for part in server.get_mut().output.clone().chunks(chunk) {
                client.receive(part, &mut received, &mut back).unwrap();
            }
            prop_assert_eq!(&received, &pieces.concat());
            prop_assert!(back.is_empty());
            server.get_mut().input = there;
            let got: Vec<u8> = pieces.iter().flat_map(|_| server.read().unwrap().into_data()).collect();
            prop_assert_eq!(&got, &pieces.concat());
        }

        #[test]
        fn no_bytes_of_a_server_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), upgrading: bool) {
            let mut frames = upgraded(&[]);
            if upgrading {
                frames = Frames::new(&Upgrade::new("ws://b", std::iter::empty()).unwrap()).unwrap();
                let _ = frames.upgrade(&bytes, &mut Vec::new());
            }
            let _ = frames.receive(&bytes, &mut Vec::new(), &mut Vec::new());
        }
    }
}
