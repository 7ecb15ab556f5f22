//! A connection with TLS, WebSocket, or both above TCP. Bytes that the kernel does not take wait here in their final form:
//! once encrypted they cannot be taken back. At most one piece of a write waits, and while it does no further one is taken.

use super::tls::Session;
use super::websocket::Frames;
use super::{Buffers, Failure, Layers, Progress, READ_SIZE, Received, Upgrade, receive, socket};
use crate::engine::cause::{Cause, Step};
use mio::net::TcpStream;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;

/// Most MQTT bytes that are put into one frame, which then fits into one TLS record.
const PIECE: usize = 16 * 1024 - 64;

/// A connection with layers.
#[derive(Debug)]
pub struct Layered {
    stream: TcpStream,
    step: Step,
    tls: Option<Session>,
    upgrade: Option<Arc<Upgrade>>,
    frames: Option<Frames>,
    /// What the kernel has not taken.
    output: Vec<u8>,
    /// How many of the last piece's MQTT bytes the peer cannot have yet. A TLS record is of use only as a whole; of a WebSocket
    /// frame a peer may read the beginning.
    unsettled: usize,
    /// Bytes at the end of `output` that came after that piece.
    behind: usize,
    /// MQTT bytes that came before they were asked for.
    early: Vec<u8>,
    heard: bool,
    closed: bool,
}

impl Layered {
    pub(super) fn new(stream: TcpStream, layers: Layers) -> Result<Self, Failure> {
        let tls = layers.tls.map(|(config, name)| Session::new(config, name)).transpose()?;
        Ok(Self {
            stream,
            step: Step::Tcp,
            tls,
            upgrade: layers.web_socket,
            frames: None,
            output: Vec::new(),
            unsettled: 0,
            behind: 0,
            early: Vec::new(),
            heard: false,
            closed: false,
        })
    }

    pub(super) fn resumed(&self) -> Option<bool> {
        self.tls.as_ref().and_then(Session::resumed)
    }

    pub(super) fn heard(&self) -> bool {
        self.heard
    }

    pub(super) fn pending(&self) -> bool {
        !self.output.is_empty()
    }

    pub(super) fn unsettled(&self) -> usize {
        self.unsettled
    }

    pub(super) fn advance(&mut self, buffers: &mut Buffers) -> Result<Progress, Failure> {
        if self.step != Step::Tcp {
            unblocked(self.push())?;
        }
        match self.step {
            Step::Tcp => {
                if !socket::established(&self.stream)? {
                    return Ok(Progress::Pending);
                }
                if self.tls.is_some() { self.begin_tls(buffers) } else { self.begin_web_socket(buffers) }
            }
            Step::Tls => self.handshake(buffers),
            Step::WebSocket => self.go_on_with_upgrade(buffers),
            Step::Connack => Ok(Progress::Open),
        }
    }

    fn begin_tls(&mut self, buffers: &mut Buffers) -> Result<Progress, Failure> {
        self.step = Step::Tls;
        self.decrypt(0, buffers)?;
        Ok(Progress::Next(Step::Tls))
    }

    fn handshake(&mut self, buffers: &mut Buffers) -> Result<Progress, Failure> {
        loop {
            let Some((length, ended)) = self.take(buffers)? else { return Ok(Progress::Pending) };
            if ended {
                return Err(self.ended_in("TLS handshake", Cause::TlsFailed));
            }
            self.decrypt(length, buffers)?;
            if self.tls.as_ref().is_none_or(|tls| !tls.is_handshaking()) {
                // Nothing is lost when this is more than the handshake: it waits for who asks for it.
                self.early.append(&mut buffers.plain);
                return self.begin_web_socket(buffers);
            }
        }
    }

    fn begin_web_socket(&mut self, buffers: &mut Buffers) -> Result<Progress, Failure> {
        let Some(upgrade) = self.upgrade.take() else {
            self.step = Step::Connack;
            return Ok(Progress::Open);
        };
        self.step = Step::WebSocket;
        let mut frames = Frames::new(&upgrade)?;
        let mut request = Vec::new();
        frames.upgrade(&[], &mut request)?;
        self.frames = Some(frames);
        self.encrypt(&request, buffers)?;
        unblocked(self.send(buffers))?;
        Ok(Progress::Next(Step::WebSocket))
    }

    fn go_on_with_upgrade(&mut self, buffers: &mut Buffers) -> Result<Progress, Failure> {
        loop {
            let Some((length, ended)) = self.take(buffers)? else { return Ok(Progress::Pending) };
            if ended {
                return Err(self.ended_in("WebSocket upgrade", Cause::WebSocketFailed));
            }
            let early = std::mem::take(&mut self.early);
            buffers.plain.clear();
            buffers.plain.extend_from_slice(&early);
            self.decrypt_into_plain(length, buffers)?;
            let Some(frames) = &mut self.frames else { return Err(Cause::WebSocketFailed.into()) };
            let mut answer = Vec::new();
            if frames.upgrade(&buffers.plain, &mut answer)? {
                self.step = Step::Connack;
                return Ok(Progress::Open);
            }
        }
    }

    /// The failure of a connection that ended before it was open.
    fn ended_in(&self, what: &str, cause: Cause) -> Failure {
        let how = if self.heard { "during" } else { "without an answer to" };
        Failure { cause, words: Some(format!("the broker closed the connection {how} the {what}")) }
    }

    /// Reads from the kernel into `raw`: `None` when nothing is there, else how much and whether it was the end.
    fn take(&mut self, buffers: &mut Buffers) -> Result<Option<(usize, bool)>, Failure> {
        buffers.raw.resize(READ_SIZE, 0);
        let (length, ended) = match receive(&mut self.stream, &mut buffers.raw) {
            Ok(read) => read,
            // Those who do not like a first message often reset: for the opening of a connection that is an end too.
            Err(Cause::Reset) if self.step != Step::Connack => (0, true),
            Err(cause) => return Err(cause.into()),
        };
        self.heard |= length > 0;
        Ok((length > 0 || ended).then_some((length, ended)))
    }

    /// Decrypts so many bytes of `raw` into `plain` and sends what TLS itself has to say.
    fn decrypt(&mut self, length: usize, buffers: &mut Buffers) -> Result<(), Failure> {
        buffers.plain.clear();
        self.decrypt_into_plain(length, buffers)
    }

    fn decrypt_into_plain(&mut self, length: usize, buffers: &mut Buffers) -> Result<(), Failure> {
        let Some(tls) = &mut self.tls else {
            buffers.plain.extend_from_slice(&buffers.raw[..length]);
            return Ok(());
        };
        buffers.wire.clear();
        let raw = buffers.raw.get_mut(..length).unwrap_or_default();
        let result = tls.receive(raw, &mut buffers.plain, &mut buffers.wire);
        let sent = self.send(buffers);
        result?;
        unblocked(sent)
    }

    pub(super) fn read(&mut self, buffers: &mut Buffers) -> Result<Received, Failure> {
        if self.closed {
            return Ok(Received { length: 0, drained: true, closed: true });
        }
        buffers.trim();
        let taken = self.take(buffers)?;
        let (length, ended) = taken.unwrap_or_default();
        let early = std::mem::take(&mut self.early);
        buffers.plain.clear();
        buffers.plain.extend_from_slice(&early);
        if length > 0 {
            self.decrypt_into_plain(length, buffers)?;
        }
        self.closed = ended || self.tls.as_ref().is_some_and(Session::is_closed);
        match &mut self.frames {
            None => std::mem::swap(&mut buffers.plain, &mut buffers.mqtt),
            Some(frames) => {
                buffers.mqtt.clear();
                let mut answers = Vec::new();
                self.closed |= frames.receive(&buffers.plain, &mut buffers.mqtt, &mut answers)?;
                if !answers.is_empty() {
                    self.encrypt(&answers, buffers)?;
                    unblocked(self.send(buffers))?;
                }
            }
        }
        let drained = !self.closed && taken.is_none_or(|(length, _)| length < READ_SIZE);
        Ok(Received { length: buffers.mqtt.len(), drained, closed: self.closed })
    }

    pub(super) fn write(&mut self, bytes: &[u8], buffers: &mut Buffers) -> io::Result<usize> {
        self.push()?;
        let piece = &bytes[..bytes.len().min(PIECE)];
        match &mut self.frames {
            None => self.encrypt(piece, buffers),
            Some(frames) => {
                let mut frame = Vec::with_capacity(piece.len() + 16);
                frames.send(piece, &mut frame)?;
                self.encrypt(&frame, buffers)
            }
        }
        .map_err(|failure| io::Error::other(failure.words.unwrap_or_default()))?;
        match self.send(buffers) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.unsettled = piece.len();
                self.settle();
            }
            Err(error) => return Err(error),
        }
        Ok(piece.len())
    }

    /// Puts bytes for the peer into `wire`, encrypted where that is asked for.
    fn encrypt(&mut self, bytes: &[u8], buffers: &mut Buffers) -> Result<(), Failure> {
        buffers.wire.clear();
        match &mut self.tls {
            None => buffers.wire.extend_from_slice(bytes),
            Some(tls) => tls.send(bytes, &mut buffers.wire)?,
        }
        Ok(())
    }

    /// Gives `wire` to the kernel; what it does not take waits, and so does everything behind something that waits.
    fn send(&mut self, buffers: &mut Buffers) -> io::Result<()> {
        if !self.output.is_empty() {
            self.output.extend_from_slice(&buffers.wire);
            self.behind += buffers.wire.len();
            return Err(ErrorKind::WouldBlock.into());
        }
        let (taken, result) = write_all(&mut self.stream, &buffers.wire);
        self.output.extend_from_slice(&buffers.wire[taken..]);
        result
    }

    pub(super) fn push(&mut self) -> io::Result<()> {
        if self.output.is_empty() {
            return Ok(());
        }
        let (taken, result) = write_all(&mut self.stream, &self.output);
        self.output.drain(..taken);
        self.settle();
        if self.output.is_empty() {
            self.output = Vec::new();
        }
        result
    }

    /// Brings `unsettled` down to what the kernel has not taken of the last piece.
    fn settle(&mut self) {
        self.behind = self.behind.min(self.output.len());
        let left = self.output.len() - self.behind;
        self.unsettled = if self.tls.is_some() && left > 0 { self.unsettled } else { self.unsettled.min(left) };
    }

    /// Says goodbye in every layer, as far as the kernel takes it.
    pub(super) fn finish(&mut self, buffers: &mut Buffers) -> &mut TcpStream {
        let mut goodbye = Vec::new();
        if let Some(frames) = &mut self.frames
            && frames.close(&mut goodbye).is_ok()
            && self.encrypt(&goodbye, buffers).is_ok()
        {
            let _ = self.send(buffers);
        }
        buffers.wire.clear();
        if let Some(tls) = &mut self.tls
            && tls.close(&mut buffers.wire).is_ok()
        {
            let _ = self.send(buffers);
        }
        &mut self.stream
    }
}

/// A full socket is no failure: what it did not take waits in `output`.
fn unblocked(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(Cause::of_io(&error).into()),
        _ => Ok(()),
    }
}

/// Writes as much as the kernel takes; returns how much that was, and `WouldBlock` when it was not everything.
fn write_all(stream: &mut TcpStream, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(0) => return (written, Err(ErrorKind::WriteZero.into())),
            Ok(length) => written += length,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}
