//! TCP sockets as a load generator wants them: non-blocking, no Nagle delay, little unsent data in the kernel.

use crate::engine::cause::Cause;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Unsent bytes over which the kernel reports a socket as not writable, so that messages wait where they are counted.
const NOT_SENT_LOW_WATER: u32 = 16 * 1024;
/// Kernel send buffer.
const SEND_BUFFER: usize = 64 * 1024;

/// Begins to connect.
///
/// # Errors
/// Those of `socket(2)`, `bind(2)` and `connect(2)` that are known at once.
pub(super) fn connect(to: SocketAddr, from: Option<IpAddr>, registry: &Registry, token: Token) -> io::Result<TcpStream> {
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
    Ok(stream)
}

/// Whether the connection is made.
///
/// # Errors
/// Why it cannot be made.
pub(super) fn established(stream: &TcpStream) -> Result<bool, Cause> {
    let look = || {
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        match stream.peer_addr() {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(e) => Err(e),
        }
    };
    look().map_err(|error: io::Error| match Cause::of_io(&error) {
        Cause::IoError | Cause::Reset => Cause::TcpFailed,
        cause => cause,
    })
}
