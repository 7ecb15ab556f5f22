//! A broker that throws everything away, so that nothing but the sender limits how fast one can send.
//!
//! It answers CONNECT, SUBSCRIBE and PINGREQ, acknowledges QoS 1, and delivers nothing. It must be faster than any
//! contender: one thread, one large read a readiness, no copy of a frame unless it is cut by the end of a read.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::control::Control;
use crate::floor::{read, wait};
use crate::frames::{self, Scanner};

const LISTENER: Token = Token(usize::MAX);

struct Peer {
    stream: TcpStream,
    scanner: Scanner,
    v5: bool,
}

/// Listens on a free port of loopback, says `port N`, and serves until the suite ends it. Only messages that can hold
/// `payload` bytes are counted.
pub fn run(payload: usize) -> Result<()> {
    let control = Control::listen();
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::bind("127.0.0.1:0".parse()?)?;
    println!("port {}", listener.local_addr()?.port());
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    control.ready();
    let mut events = Events::with_capacity(1024);
    let mut scratch = vec![0; 256 * 1024];
    let mut peers: Vec<Option<Peer>> = Vec::new();
    loop {
        wait(&mut poll, &mut events, Duration::from_millis(100))?;
        let mut published = 0;
        for event in &events {
            if event.token() == LISTENER {
                accept(&poll, &listener, &mut peers)?;
            } else if event.is_readable() {
                let slot = &mut peers[event.token().0];
                // A closed or broken connection is the end of one peer, not of the sink.
                if let Some(peer) = slot
                    && serve(peer, payload, &mut scratch, &mut published).is_err()
                {
                    *slot = None;
                }
            }
        }
        control.add(published);
    }
}

fn accept(poll: &Poll, listener: &TcpListener, peers: &mut Vec<Option<Peer>>) -> Result<()> {
    while let Ok((mut stream, _)) = listener.accept() {
        stream.set_nodelay(true)?;
        poll.registry().register(&mut stream, Token(peers.len()), Interest::READABLE)?;
        peers.push(Some(Peer { stream, scanner: Scanner::default(), v5: false }));
    }
    Ok(())
}

fn serve(peer: &mut Peer, payload: usize, scratch: &mut [u8], published: &mut u64) -> Result<()> {
    let mut answers = Vec::new();
    let (scanner, v5) = (&mut peer.scanner, &mut peer.v5);
    read(&mut peer.stream, scratch, |bytes| {
        scanner.feed(bytes, |first, body| match first >> 4 {
            1 => {
                *v5 = body.get(6) == Some(&5);
                answers.extend_from_slice(if *v5 { &[0x20, 3, 0, 0, 0] } else { &[0x20, 2, 0, 0] });
            }
            3 => {
                *published += u64::from(body.len() > payload);
                if first & 0x06 == 0x02
                    && let Some(id) = frames::packet_id(body)
                {
                    answers.extend_from_slice(&[0x40, 2, id[0], id[1]]);
                }
            }
            8 => {
                let (id, qos) = (&body[..2], body[body.len() - 1] & 3);
                answers.extend_from_slice(&[0x90, if *v5 { 4 } else { 3 }, id[0], id[1]]);
                answers.extend_from_slice(if *v5 { &[0][..] } else { &[] });
                answers.push(qos);
            }
            12 => answers.extend_from_slice(&[0xd0, 0]),
            _ => {}
        })
    })?;
    if !answers.is_empty() {
        peer.stream.write_all(&answers).context("answer")?;
    }
    Ok(())
}
