//! One TLS session over buffers: records in, plain bytes out, and the other way round. It owns no socket, and no memory
//! but the part of a record that has come so far.

use super::Failure;
use crate::engine::tls::words::explain;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{ClientConfig, Error, HandshakeKind};
use std::fmt;
use std::sync::Arc;

/// Most that a record adds to what it carries: header, explicit nonce, content type, tag (RFC 5246, RFC 8446).
const RECORD_OVERHEAD: usize = 64;
const RECORD: usize = 16 * 1024;

/// A TLS session.
pub(super) struct Session {
    connection: UnbufferedClientConnection,
    /// A record of which only a part has come.
    partial: Vec<u8>,
    closed: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("partial", &self.partial.len()).field("closed", &self.closed).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, Failure> {
        let connection = UnbufferedClientConnection::new(config, name).map_err(|error| failure(&error))?;
        Ok(Self { connection, partial: Vec::new(), closed: false })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Whether the peer has said that nothing more comes.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn resumed(&self) -> Option<bool> {
        self.connection.handshake_kind().map(|kind| kind == HandshakeKind::Resumed)
    }

    /// Takes what came from the peer (also nothing, which begins the handshake). Plain bytes are appended to `plain`, answers to
    /// `wire`, which must be sent even after an error: it may hold the alert that tells the peer.
    pub(super) fn receive(&mut self, raw: &mut [u8], plain: &mut Vec<u8>, wire: &mut Vec<u8>) -> Result<(), Failure> {
        if self.partial.is_empty() {
            let used = self.process(raw, plain, wire)?;
            self.partial.extend_from_slice(&raw[used..]);
            return Ok(());
        }
        let mut records = std::mem::take(&mut self.partial);
        records.extend_from_slice(raw);
        let used = self.process(&mut records, plain, wire)?;
        if used < records.len() {
            records.drain(..used);
            self.partial = records;
        }
        Ok(())
    }

    fn process(&mut self, records: &mut [u8], plain: &mut Vec<u8>, wire: &mut Vec<u8>) -> Result<usize, Failure> {
        let mut used = 0;
        loop {
            let UnbufferedStatus { mut discard, state } = self.connection.process_tls_records(&mut records[used..]);
            let mut blocked = false;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let record = record.map_err(|error| failure(&error))?;
                        discard += record.discard;
                        plain.extend_from_slice(record.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut |out| data.encode(out), wire),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => self.closed = true,
                Ok(ConnectionState::Closed) => {
                    self.closed = true;
                    blocked = true;
                }
                Ok(_) => blocked = true,
                Err(error) => {
                    self.alert(wire);
                    return Err(failure(&error));
                }
            }
            used += discard;
            if blocked {
                return Ok(used);
            }
        }
    }

    /// Appends the alert that an error left behind.
    fn alert(&mut self, wire: &mut Vec<u8>) {
        while let Ok(ConnectionState::EncodeTlsData(mut data)) = self.connection.process_tls_records(&mut []).state {
            encode(&mut |out| data.encode(out), wire);
        }
    }

    /// Appends the records of some plain bytes to `wire`.
    pub(super) fn send(&mut self, bytes: &[u8], wire: &mut Vec<u8>) -> Result<(), Failure> {
        self.write(wire, bytes.len() + (bytes.len() / RECORD + 1) * RECORD_OVERHEAD, |traffic, out| traffic.encrypt(bytes, out))
    }

    /// Appends the alert that says that nothing more comes.
    pub(super) fn close(&mut self, wire: &mut Vec<u8>) -> Result<(), Failure> {
        self.write(wire, RECORD_OVERHEAD, |traffic, out| traffic.queue_close_notify(out))
    }

    fn write(
        &mut self,
        wire: &mut Vec<u8>,
        room: usize,
        mut put: impl FnMut(
            &mut rustls::unbuffered::WriteTraffic<'_, rustls::client::ClientConnectionData>,
            &mut [u8],
        ) -> Result<usize, EncryptError>,
    ) -> Result<(), Failure> {
        loop {
            match self.connection.process_tls_records(&mut self.partial).state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    let at = wire.len();
                    wire.resize(at + room, 0);
                    let written = match put(&mut traffic, &mut wire[at..]) {
                        Err(EncryptError::InsufficientSize(needed)) => {
                            wire.resize(at + needed.required_size, 0);
                            put(&mut traffic, &mut wire[at..])
                        }
                        other => other,
                    };
                    wire.truncate(at + written.as_ref().map_or(0, |written| *written));
                    return written.map(|_| ()).map_err(|error| failure(&Error::General(error.to_string())));
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut |out| data.encode(out), wire),
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => self.closed = true,
                Ok(_) => return Err(failure(&Error::HandshakeNotComplete)),
                Err(error) => return Err(failure(&error)),
            }
        }
    }
}

/// Appends one record that rustls has ready.
fn encode(put: &mut dyn FnMut(&mut [u8]) -> Result<usize, EncodeError>, wire: &mut Vec<u8>) {
    let at = wire.len();
    let mut room = 1024;
    loop {
        wire.resize(at + room, 0);
        match put(&mut wire[at..]) {
            Ok(written) => return wire.truncate(at + written),
            Err(EncodeError::InsufficientSize(needed)) if needed.required_size > room => room = needed.required_size,
            Err(_) => return wire.truncate(at),
        }
    }
}

fn failure(error: &Error) -> Failure {
    let (cause, words) = explain(error);
    Failure { cause, words: Some(words) }
}
