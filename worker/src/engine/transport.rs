//! What carries a client's bytes. One enum, so that TLS and WebSocket join without the state machine noticing.

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};

/// Unsent bytes over which the kernel reports a socket as not writable, so that messages wait where they are counted.
const NOT_SENT_LOW_WATER: u32 = 16 * 1024;
/// Kernel send buffer.
const SEND_BUFFER: usize = 64 * 1024;

/// A connection to the broker.
#[derive(Debug)]
pub enum Transport {
    /// Plain TCP.
    Tcp(TcpStream),
}

impl Transport {
    /// Begins to connect; the socket becomes writable when that has succeeded or failed.
    ///
    /// # Errors
    /// Those of `socket(2)`, `bind(2)` and `connect(2)` that are known at once.
    pub fn connect(to: SocketAddr, from: Option<IpAddr>, registry: &Registry, token: Token) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_notsent_lowat(NOT_SENT_LOW_WATER)?;
        socket.set_send_buffer_size(SEND_BUFFER)?;
        if let Some(from) = from {
            // The port is chosen at connect, so that it need only be free towards this endpoint.
            nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::IpBindAddressNoPort, &true)?;
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        match socket.connect(&to.into()) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(nix::errno::Errno::EINPROGRESS as i32) => {}
            Err(e) => return Err(e),
        }
        let mut stream = TcpStream::from_std(socket.into());
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self::Tcp(stream))
    }

    /// Whether the connection is made: `None` while it is not.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub fn established(&self) -> io::Result<Option<()>> {
        let Self::Tcp(stream) = self;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        match stream.peer_addr() {
            Ok(_) => Ok(Some(())),
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Reads what is there; 0 at the peer's FIN.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there, else the socket's.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Self::Tcp(stream) = self;
        stream.read(buffer)
    }

    /// Gives bytes to the kernel; returns how many it took.
    ///
    /// # Errors
    /// `WouldBlock` when it takes none, else the socket's.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self::Tcp(stream) = self;
        stream.write(bytes)
    }

    /// Sends a FIN.
    pub fn finish(&mut self) {
        let Self::Tcp(stream) = self;
        // A peer that has gone already needs no FIN.
        let _ = stream.shutdown(Shutdown::Write);
    }
}
