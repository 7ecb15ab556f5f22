//! What carries a client's bytes: TCP, or TLS and WebSocket above it. One enum, so that the state machine does not notice.
//!
//! Whoever drives it calls [`Transport::advance`] until the connection is open, then reads and writes MQTT bytes. Nothing here
//! knows MQTT or counts anything.

mod layered;
mod socket;
mod tls;
mod websocket;

pub use layered::Layered;
pub use websocket::Upgrade;

use super::cause::{Cause, Step};
use mio::net::TcpStream;
use mio::{Registry, Token};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;

/// Most bytes that one read takes from the kernel.
pub const READ_SIZE: usize = 64 * 1024;

/// Memory that all connections of a thread share, so that an idle one has none of its own.
#[derive(Debug)]
pub struct Buffers {
    /// MQTT bytes that were read.
    pub mqtt: Vec<u8>,
    /// What the kernel gave, where that is not MQTT yet.
    raw: Vec<u8>,
    /// Decrypted bytes that are not MQTT yet.
    plain: Vec<u8>,
    /// What goes to the kernel.
    wire: Vec<u8>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self { mqtt: vec![0; READ_SIZE], raw: Vec::new(), plain: Vec::new(), wire: Vec::new() }
    }
}

impl Buffers {
    /// Gives back what a very large packet took.
    fn trim(&mut self) {
        const MOST: usize = 16 * READ_SIZE;
        for buffer in [&mut self.mqtt, &mut self.plain, &mut self.wire] {
            if buffer.capacity() > MOST {
                *buffer = Vec::new();
            }
        }
    }
}

/// Why a connection failed, and what that means for people where the cause alone does not say it.
#[derive(Debug)]
pub struct Failure {
    /// How it is counted.
    pub cause: Cause,
    /// In words.
    pub words: Option<String>,
}

impl From<Cause> for Failure {
    fn from(cause: Cause) -> Self {
        Self { cause, words: None }
    }
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The peer must speak, or the kernel take more, before anything happens.
    Pending,
    /// A step was made; this is the one that follows.
    Next(Step),
    /// MQTT may begin.
    Open,
}

/// What a read gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// MQTT bytes in [`Buffers::mqtt`].
    pub length: usize,
    /// The kernel has nothing more at the moment.
    pub drained: bool,
    /// The peer has closed its half.
    pub closed: bool,
}

/// What is above TCP.
#[derive(Debug, Default)]
pub struct Layers {
    /// TLS with this configuration, for a server of this name.
    pub tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// WebSocket with this upgrade request.
    pub web_socket: Option<Arc<Upgrade>>,
}

/// A connection to the broker.
#[derive(Debug)]
pub enum Transport {
    /// Plain TCP.
    Tcp(TcpStream),
    /// TLS, WebSocket, or both.
    Layered(Box<Layered>),
}

impl Transport {
    /// Begins to connect; the socket becomes writable when that has succeeded or failed.
    ///
    /// # Errors
    /// Those of `socket(2)`, `bind(2)` and `connect(2)` that are known at once, or a TLS configuration that cannot be used.
    pub fn connect(
        to: SocketAddr,
        from: Option<IpAddr>,
        layers: Layers,
        registry: &Registry,
        token: Token,
    ) -> Result<Self, Failure> {
        let stream = socket::connect(to, from, registry, token).map_err(|error| match Cause::of_io(&error) {
            Cause::IoError => Cause::TcpFailed,
            cause => cause,
        })?;
        if layers.tls.is_none() && layers.web_socket.is_none() {
            return Ok(Self::Tcp(stream));
        }
        Ok(Self::Layered(Box::new(Layered::new(stream, layers)?)))
    }

    /// Goes on with what comes before MQTT. To be called again at once after [`Progress::Next`], and at each event after
    /// [`Progress::Pending`]; after [`Progress::Open`] the first read must not wait for an event.
    ///
    /// # Errors
    /// Why the connection cannot be made.
    pub fn advance(&mut self, buffers: &mut Buffers) -> Result<Progress, Failure> {
        match self {
            Self::Tcp(stream) => Ok(if socket::established(stream)? { Progress::Open } else { Progress::Pending }),
            Self::Layered(layered) => layered.advance(buffers),
        }
    }

    /// Whether the TLS session was resumed; `None` without TLS or before the handshake is over.
    pub fn resumed(&self) -> Option<bool> {
        match self {
            Self::Tcp(_) => None,
            Self::Layered(layered) => layered.resumed(),
        }
    }

    /// Whether the peer has sent anything at all. Known of layered connections only.
    pub fn heard(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            Self::Layered(layered) => layered.heard(),
        }
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// Why the connection is lost.
    #[inline]
    pub fn read(&mut self, buffers: &mut Buffers) -> Result<Received, Failure> {
        match self {
            Self::Tcp(stream) => {
                if buffers.mqtt.len() < READ_SIZE {
                    buffers.mqtt.resize(READ_SIZE, 0);
                }
                let (length, ended) = receive(stream, &mut buffers.mqtt[..READ_SIZE])?;
                Ok(Received { length, drained: length < READ_SIZE, closed: ended })
            }
            Self::Layered(layered) => layered.read(buffers),
        }
    }

    /// Gives MQTT bytes on; returns how many can no longer be taken back. Of those, [`Transport::unsettled`] wait with the
    /// transport, because the kernel has not taken all that they became.
    ///
    /// # Errors
    /// `WouldBlock` when it takes none, else the socket's.
    #[inline]
    pub fn write(&mut self, bytes: &[u8], buffers: &mut Buffers) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Layered(layered) => layered.write(bytes, buffers),
        }
    }

    /// Gives the kernel what waits with the transport.
    ///
    /// # Errors
    /// `WouldBlock` when it does not take everything, else the socket's.
    pub fn push(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) => Ok(()),
            Self::Layered(layered) => layered.push(),
        }
    }

    /// Whether anything waits with the transport.
    #[inline]
    pub fn pending(&self) -> bool {
        match self {
            Self::Tcp(_) => false,
            Self::Layered(layered) => layered.pending(),
        }
    }

    /// How many of the last MQTT bytes given to [`Transport::write`] the peer cannot have yet.
    #[inline]
    pub fn unsettled(&self) -> usize {
        match self {
            Self::Tcp(_) => 0,
            Self::Layered(layered) => layered.unsettled(),
        }
    }

    /// Says goodbye in every layer and sends a FIN.
    pub fn finish(&mut self, buffers: &mut Buffers) {
        let stream = match self {
            Self::Tcp(stream) => stream,
            Self::Layered(layered) => layered.finish(buffers),
        };
        // A peer that has gone already needs no FIN.
        let _ = stream.shutdown(Shutdown::Write);
    }
}

/// One read from a socket: how much, and whether that was the end.
#[inline]
fn receive(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<(usize, bool), Cause> {
    loop {
        match stream.read(buffer) {
            Ok(length) => return Ok((length, length == 0)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok((0, false)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Cause::of_io(&error)),
        }
    }
}
