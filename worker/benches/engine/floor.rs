//! The floor: raw epoll (mio, edge-triggered, one thread), each frame encoded once, and nothing else.
//!
//! What it does on purpose, since a real client must: TCP_NODELAY, a packet identifier of its own for every QoS 1
//! publish, acknowledgements read as soon as they come. What it leaves out: latency, counters by reason, in-flight
//! tables, time-outs, reconnects. One read a readiness (a short read means that the socket is empty), no timers: the
//! next due time is the time-out of epoll, whose granularity is 1 ms.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream as Blocking;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use mqtt_loadtest_worker::accounting::header::{Header, LENGTH};

use crate::control::Control;
use crate::frames::{self, Publish, Scanner};
use crate::load::{Kind, Load};

/// Longest wait for the broker's answer to CONNECT or SUBSCRIBE.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest sleep, so that the start is noticed soon.
const IDLE: Duration = Duration::from_millis(5);
/// Granularity of the schedule: the coarsest that all contenders may have, since it is the cheapest.
const TICK_NS: u64 = 1_000_000;
/// Writes to one client in a row when there is no pace, before the next client has its turn.
const WRITES_A_TURN: usize = 4;
/// Bytes of frames that are written at once when there is no pace.
const BATCH: usize = 16 * 1024;

struct Client {
    stream: TcpStream,
    scanner: Scanner,
    publish: Option<Publish>,
    packet_id: u16,
    /// Bytes of the current frame (or batch) that the kernel already has; 0 between frames.
    written: usize,
}

/// Runs the floor until the suite ends it.
pub fn run(load: &Load) -> Result<()> {
    let control = Control::listen();
    let mut poll = Poll::new()?;
    let mut clients = Vec::with_capacity(load.clients);
    for number in 0..load.clients {
        let mut stream = open(load, number)?;
        poll.registry().register(&mut stream, Token(number), Interest::READABLE | Interest::WRITABLE)?;
        let publish = (load.kind == Kind::Send)
            .then(|| frames::publish(load.protocol, &load.topic_of(number), load.qos, &load.payload_bytes()));
        clients.push(Client { stream, scanner: Scanner::default(), publish, packet_id: 0, written: 0 });
    }
    control.ready();
    match (load.kind, load.rate) {
        (Kind::Send, 0) => flood(&mut poll, &mut clients, &control),
        (Kind::Send, _) => send(load, &mut poll, &mut clients, &control),
        (Kind::Receive | Kind::Idle, _) => receive(&mut poll, &mut clients, &control),
    }
}

/// Connects one client, and subscribes it when it is to receive; blocking, since this is not measured.
fn open(load: &Load, number: usize) -> Result<TcpStream> {
    let mut stream = Blocking::connect_timeout(&load.broker, ANSWER_TIMEOUT)
        .with_context(|| format!("client {number}: connect to {}", load.broker))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(&frames::connect(load.protocol, &load.client_id(number)))?;
    let connack = answer(&mut stream).context("no CONNACK")?;
    ensure!(connack.0 == 0x20 && connack.1.get(1) == Some(&0), "CONNACK refused: {connack:02x?}");
    if load.kind == Kind::Receive {
        stream.write_all(&frames::subscribe(load.protocol, &load.topic_of(number), load.qos))?;
        let suback = answer(&mut stream).context("no SUBACK")?;
        ensure!(suback.0 == 0x90 && suback.1.last() == Some(&load.qos), "SUBACK refused: {suback:02x?}");
    }
    stream.set_read_timeout(None)?;
    stream.set_nonblocking(true)?;
    Ok(TcpStream::from_std(stream))
}

fn answer(stream: &mut Blocking) -> Result<(u8, Vec<u8>)> {
    let mut scanner = Scanner::default();
    let mut got = None;
    // One byte at a time, so that nothing behind this answer is swallowed.
    for _ in 0..256 {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        scanner.feed(&byte, |first, body| got = Some((first, body.to_vec())))?;
        if let Some(frame) = got {
            return Ok(frame);
        }
    }
    bail!("an answer of more than 256 bytes")
}

/// Publishes on the schedule and counts: PUBACKs for QoS 1, whole frames given to the kernel for QoS 0.
fn send(load: &Load, poll: &mut Poll, clients: &mut [Client], control: &Control) -> Result<()> {
    let mut events = Events::with_capacity(1024);
    let mut scratch = vec![0; 64 * 1024];
    let mut start = None;
    let mut start_unix_ns = 0;
    let mut slot = 0u64;
    loop {
        let timeout = match start {
            None => IDLE,
            Some(start) => due(load, start, slot).saturating_duration_since(Instant::now()).min(IDLE),
        };
        wait(poll, &mut events, timeout)?;
        let mut done = 0;
        for event in &events {
            let client = &mut clients[event.token().0];
            if event.is_readable() {
                read(&mut client.stream, &mut scratch, |bytes| {
                    client.scanner.feed(bytes, |first, _| done += u64::from(first == 0x40))
                })?;
            }
            if client.written > 0 {
                done += u64::from(push(client)? && load.qos == 0);
            }
        }
        if start.is_none() && control.started() {
            start = Some(Instant::now());
            start_unix_ns = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64;
        }
        if let Some(start) = start {
            let now = Instant::now();
            while due(load, start, slot) <= now {
                let client = &mut clients[(slot % load.clients as u64) as usize];
                // A client whose frame is still under way misses its slot: the achieved rate shows it.
                if client.written == 0 {
                    number(client);
                    if let Some(run_tag) = load.run_tag {
                        tag(client, run_tag, slot, load, start_unix_ns);
                    }
                    done += u64::from(push(client)? && load.qos == 0);
                }
                slot += 1;
            }
        }
        if done > 0 {
            control.add(done);
        }
    }
}

/// When a slot is sent: rounded up to [`TICK_NS`], so that what is due together costs one turn of the loop.
fn due(load: &Load, start: Instant, slot: u64) -> Instant {
    start + Duration::from_nanos(load.due_ns(slot).div_ceil(TICK_NS) * TICK_NS)
}

/// Gives the next publish its own packet identifier (MQTT 2.2.1: never 0).
fn number(client: &mut Client) {
    client.packet_id = client.packet_id % u16::MAX + 1;
    if let Some(publish) = &mut client.publish
        && let Some(at) = publish.id_at
    {
        publish.bytes[at..at + 2].copy_from_slice(&client.packet_id.to_be_bytes());
    }
}

/// Puts an accounting header at the front of the payload, as a worker of the run would: only the source does this.
fn tag(client: &mut Client, run_tag: u32, slot: u64, load: &Load, start_unix_ns: u64) {
    let Some(publish) = &mut client.publish else { return };
    let clients = load.clients as u64;
    let header = Header {
        entry: 0,
        attempt: 0,
        run_tag,
        client: (slot % clients) as u32,
        seq: (slot / clients) as u32,
        due_unix_ns: start_unix_ns + load.due_ns(slot),
    };
    publish.bytes[publish.payload_at..][..LENGTH].copy_from_slice(&header.encode());
}

/// Writes what is left of the client's frame; true when the kernel has all of it.
fn push(client: &mut Client) -> Result<bool> {
    let Some(publish) = &client.publish else { return Ok(false) };
    match client.stream.write(&publish.bytes[client.written..]) {
        Ok(n) if client.written + n == publish.bytes.len() => {
            client.written = 0;
            Ok(true)
        }
        Ok(n) => {
            client.written += n;
            Ok(false)
        }
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
        Err(e) => Err(e).context("write"),
    }
}

/// Publishes QoS 0 as fast as the sockets take it, many frames a write.
fn flood(poll: &mut Poll, clients: &mut [Client], control: &Control) -> Result<()> {
    let mut events = Events::with_capacity(1024);
    let mut frame_len = Vec::with_capacity(clients.len());
    for client in clients.iter_mut() {
        let Some(publish) = &mut client.publish else { bail!("a client without a frame") };
        frame_len.push(publish.bytes.len());
        publish.bytes = publish.bytes.repeat(BATCH / publish.bytes.len());
    }
    while !control.started() {
        wait(poll, &mut events, IDLE)?;
    }
    let mut open: std::collections::VecDeque<usize> = (0..clients.len()).collect();
    let mut is_open = vec![true; clients.len()];
    loop {
        let timeout = if open.is_empty() { IDLE } else { Duration::ZERO };
        wait(poll, &mut events, timeout)?;
        for event in &events {
            let i = event.token().0;
            if event.is_writable() && !is_open[i] {
                is_open[i] = true;
                open.push_back(i);
            }
        }
        let mut done = 0;
        for _ in 0..open.len() {
            let Some(i) = open.pop_front() else { break };
            let client = &mut clients[i];
            let Some(publish) = &client.publish else { continue };
            is_open[i] = true;
            for _ in 0..WRITES_A_TURN {
                let before = client.written;
                match client.stream.write(&publish.bytes[before..]) {
                    Ok(n) => {
                        done += ((before + n) / frame_len[i] - before / frame_len[i]) as u64;
                        client.written = (before + n) % publish.bytes.len();
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        is_open[i] = false;
                        break;
                    }
                    Err(e) => return Err(e).context("write"),
                }
            }
            if is_open[i] {
                open.push_back(i);
            }
        }
        control.add(done);
    }
}

/// Reads, acknowledges QoS 1 with one write a read, counts PUBLISH frames.
fn receive(poll: &mut Poll, clients: &mut [Client], control: &Control) -> Result<()> {
    let mut events = Events::with_capacity(1024);
    let mut scratch = vec![0; 64 * 1024];
    let mut acks = Vec::new();
    loop {
        wait(poll, &mut events, Duration::from_millis(100))?;
        let mut done = 0;
        for event in events.iter().filter(|e| e.is_readable()) {
            let client = &mut clients[event.token().0];
            read(&mut client.stream, &mut scratch, |bytes| {
                client.scanner.feed(bytes, |first, body| {
                    if first & 0xf0 == 0x30 {
                        done += 1;
                        if first & 0x06 == 0x02
                            && let Some(id) = frames::packet_id(body)
                        {
                            acks.extend_from_slice(&[0x40, 2, id[0], id[1]]);
                        }
                    }
                })
            })?;
            if !acks.is_empty() {
                // PUBACKs are four bytes each into an empty send buffer: a short write means a broken benchmark.
                let n = client.stream.write(&acks).context("write PUBACKs")?;
                ensure!(n == acks.len(), "the send buffer has no room for {} bytes of PUBACKs", acks.len());
                acks.clear();
            }
        }
        if done > 0 {
            control.add(done);
        }
    }
}

/// Reads until the socket is empty; a short read says so without another system call.
pub fn read(stream: &mut TcpStream, scratch: &mut [u8], mut on_bytes: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    loop {
        match stream.read(scratch) {
            Ok(0) => bail!("the other side closed the connection"),
            Ok(n) => {
                on_bytes(&scratch[..n])?;
                if n < scratch.len() {
                    return Ok(());
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e).context("read"),
        }
    }
}

/// One epoll_wait; an interrupted one is an empty one.
pub fn wait(poll: &mut Poll, events: &mut Events, timeout: Duration) -> Result<()> {
    match poll.poll(events, Some(timeout)) {
        Err(e) if e.kind() == ErrorKind::Interrupted => {
            events.clear();
            Ok(())
        }
        other => other.context("epoll"),
    }
}
