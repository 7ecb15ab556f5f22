//! MQTT control packets in a packet capture: when each crossed the wire, between which client and the broker. Reads pcap
//! files of Ethernet frames, puts TCP streams back together (retransmissions dropped, late segments put in their place)
//! and frames them by MQTT's fixed header (MQTT 5.0 section 2.1, the same in 3.1.1). It shares no code with the client
//! engine, so that the two cannot be wrong together. It looks at nothing behind the fixed header.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use etherparse::{NetSlice, SlicedPacket, TcpSlice, TransportSlice};
use pcap_file::pcap::PcapReader;

/// Which end sent a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    /// The MQTT client.
    Client,
    /// The MQTT server.
    Broker,
}

/// The control packet types of MQTT, by their number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are MQTT's own")]
pub enum PacketType {
    Reserved,
    Connect,
    Connack,
    Publish,
    Puback,
    Pubrec,
    Pubrel,
    Pubcomp,
    Subscribe,
    Suback,
    Unsubscribe,
    Unsuback,
    Pingreq,
    Pingresp,
    Disconnect,
    Auth,
}

impl PacketType {
    const ALL: [Self; 16] = [
        Self::Reserved,
        Self::Connect,
        Self::Connack,
        Self::Publish,
        Self::Puback,
        Self::Pubrec,
        Self::Pubrel,
        Self::Pubcomp,
        Self::Subscribe,
        Self::Suback,
        Self::Unsubscribe,
        Self::Unsuback,
        Self::Pingreq,
        Self::Pingresp,
        Self::Disconnect,
        Self::Auth,
    ];
}

/// One control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// When its first byte was seen, since the Unix epoch.
    pub at: Duration,
    /// The client's end of the connection.
    pub client: SocketAddr,
    /// Which end sent it.
    pub sender: Sender,
    /// Its type.
    pub kind: PacketType,
    /// Its size in bytes, fixed header included.
    pub size: usize,
}

/// Everything a capture tells, in the order of time.
#[derive(Debug, Default)]
pub struct Flows {
    /// The control packets.
    pub packets: Vec<Packet>,
    /// The first SYN of each connection.
    pub opened: Vec<(Duration, SocketAddr)>,
    /// Every RST, and who sent it.
    pub reset: Vec<(Duration, SocketAddr, Sender)>,
}

impl Flows {
    /// Reads a capture of the traffic of the broker that listens on `port`. Connections that began before the capture are
    /// left out: where their packets begin is unknown.
    ///
    /// # Errors
    /// When the file is no pcap, or holds frames that were cut off.
    pub fn read(pcap: &Path, port: u16) -> Result<Self> {
        let file = File::open(pcap).with_context(|| pcap.display().to_string())?;
        Self::parse(BufReader::with_capacity(1 << 20, file), port)
    }

    fn parse(pcap: impl Read, port: u16) -> Result<Self> {
        let mut reader = PcapReader::new(pcap)?;
        let mut flows = Self::default();
        let mut streams: HashMap<(SocketAddr, Sender), Stream> = HashMap::new();
        while let Some(frame) = reader.next_packet() {
            let frame = frame?;
            ensure!(frame.data.len() == frame.orig_len as usize, "the capture cut a frame off: use a larger snapshot length");
            let Ok(sliced) = SlicedPacket::from_ethernet(&frame.data) else { continue };
            let (Some(net), Some(TransportSlice::Tcp(tcp))) = (&sliced.net, &sliced.transport) else { continue };
            let Some((client, sender)) = ends(net, tcp, port) else { continue };
            flows.take(&mut streams, frame.timestamp, client, sender, tcp);
        }
        flows.packets.sort_by_key(|packet| packet.at);
        Ok(flows)
    }

    fn take(
        &mut self,
        streams: &mut HashMap<(SocketAddr, Sender), Stream>,
        at: Duration,
        client: SocketAddr,
        sender: Sender,
        tcp: &TcpSlice<'_>,
    ) {
        if tcp.rst() {
            self.reset.push((at, client, sender));
        }
        if tcp.syn() {
            let next = tcp.sequence_number().wrapping_add(1);
            let known = streams.get(&(client, sender)).is_some_and(|stream| stream.first == next);
            if !known {
                streams.insert((client, sender), Stream::new(next));
                if sender == Sender::Client {
                    self.opened.push((at, client));
                }
            }
            return;
        }
        if let Some(stream) = streams.get_mut(&(client, sender)) {
            stream.segment(at, tcp.sequence_number(), tcp.payload(), &mut |at, kind, size| {
                self.packets.push(Packet { at, client, sender, kind, size });
            });
        }
    }

    /// The packets of one type from one end, in the order of time.
    pub fn of(&self, sender: Sender, kind: PacketType) -> impl Iterator<Item = &Packet> {
        self.packets.iter().filter(move |packet| packet.sender == sender && packet.kind == kind)
    }
}

fn ends(net: &NetSlice<'_>, tcp: &TcpSlice<'_>, port: u16) -> Option<(SocketAddr, Sender)> {
    let (source, destination): (IpAddr, IpAddr) = match net {
        NetSlice::Ipv4(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        NetSlice::Ipv6(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        NetSlice::Arp(_) => return None,
    };
    if tcp.destination_port() == port {
        Some((SocketAddr::new(source, tcp.source_port()), Sender::Client))
    } else if tcp.source_port() == port {
        Some((SocketAddr::new(destination, tcp.destination_port()), Sender::Broker))
    } else {
        None
    }
}

/// One direction of a connection.
struct Stream {
    first: u32,
    next: u32,
    /// Segments that came before their turn, by sequence number.
    early: BTreeMap<u32, (Duration, Vec<u8>)>,
    framer: Framer,
}

impl Stream {
    fn new(first: u32) -> Self {
        Self { first, next: first, early: BTreeMap::new(), framer: Framer::default() }
    }

    fn segment(&mut self, at: Duration, sequence: u32, payload: &[u8], found: &mut impl FnMut(Duration, PacketType, usize)) {
        if payload.is_empty() {
            return;
        }
        // Sequence numbers wrap: less than half the circle ahead is ahead.
        let ahead = sequence.wrapping_sub(self.next).cast_signed();
        if ahead > 0 {
            self.early.insert(sequence, (at, payload.to_vec()));
            return;
        }
        let seen = ahead.unsigned_abs() as usize;
        if let Some(new) = payload.get(seen..).filter(|new| !new.is_empty()) {
            self.framer.bytes(at, new, found);
            self.next = self.next.wrapping_add(u32::try_from(new.len()).unwrap_or(u32::MAX));
        }
        let next = self.next;
        let due = self.early.keys().copied().find(|sequence| sequence.wrapping_sub(next).cast_signed() <= 0);
        if let Some((at, payload)) = due.and_then(|sequence| self.early.remove(&sequence)) {
            self.segment(at, due.unwrap_or(next), &payload, found);
        }
    }
}

/// Cuts a stream of bytes into control packets.
#[derive(Default)]
struct Framer {
    /// The fixed header as far as it has come, and when its first byte did.
    header: Vec<u8>,
    began: Duration,
    /// What is still to come of the packet's remaining length.
    skip: usize,
}

impl Framer {
    fn bytes(&mut self, at: Duration, mut bytes: &[u8], found: &mut impl FnMut(Duration, PacketType, usize)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let Some((&byte, rest)) = bytes.split_first() else { return };
            bytes = rest;
            if self.header.is_empty() {
                self.began = at;
            }
            self.header.push(byte);
            // The remaining length: 7 bits a byte, the least significant first, while the eighth bit is set.
            if self.header.len() > 1 && byte & 0x80 == 0 {
                let length = self.header[1..].iter().rev().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f));
                found(self.began, PacketType::ALL[usize::from(self.header[0] >> 4)], self.header.len() + length);
                self.skip = length;
                self.header.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECT: &[u8] = &[0x10, 2, 1, 2];
    const PINGREQ: &[u8] = &[0xc0, 0];

    fn publish(length: u8) -> Vec<u8> {
        let mut bytes = vec![0x32, length | 0x80, 1];
        bytes.resize(3 + 128 + usize::from(length), 7);
        bytes
    }

    fn framed(segments: &[(u64, u32, &[u8])]) -> Vec<(u64, PacketType, usize)> {
        let mut stream = Stream::new(u32::MAX - 3); // wraps within the first packet
        let mut packets = Vec::new();
        for (at, offset, payload) in segments {
            let sequence = stream.first.wrapping_add(*offset);
            stream.segment(Duration::from_secs(*at), sequence, payload, &mut |at, kind, size| {
                packets.push((at.as_secs(), kind, size));
            });
        }
        packets
    }

    #[test]
    fn packets_are_found_however_the_stream_is_cut() {
        let stream = [CONNECT, &publish(3), PINGREQ, &publish(0)].concat();
        let expected = [
            (1, PacketType::Connect, 4),
            (1, PacketType::Publish, 134),
            (1, PacketType::Pingreq, 2),
            (1, PacketType::Publish, 131),
        ];
        for size in 1..stream.len() {
            let mut segments = Vec::new();
            for (index, piece) in stream.chunks(size).enumerate() {
                segments.push((1, u32::try_from(index * size).expect("short"), piece));
            }
            assert_eq!(framed(&segments), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn a_retransmission_counts_once_and_a_late_segment_finds_its_place() {
        let publish = publish(0);
        let packets = framed(&[(1, 0, CONNECT), (2, 0, CONNECT), (4, 135, PINGREQ), (5, 4, &publish), (6, 4, &publish)]);
        assert_eq!(packets, [(1, PacketType::Connect, 4), (5, PacketType::Publish, 131), (4, PacketType::Pingreq, 2)]);
    }

    #[test]
    fn a_capture_tells_connections_and_packets_of_both_ends() {
        use pcap_file::pcap::{PcapPacket, PcapWriter};
        let frame = |from_client: bool, sequence: u32, syn: bool, payload: &[u8]| {
            let (client, broker) = ([10, 91, 0, 5], [10, 91, 0, 2]);
            let (from, to, ports) = if from_client { (client, broker, (40000, 1883)) } else { (broker, client, (1883, 40000)) };
            let builder =
                etherparse::PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4(from, to, 64).tcp(ports.0, ports.1, sequence, 1024);
            let builder = if syn { builder.syn() } else { builder };
            let mut bytes = Vec::new();
            builder.write(&mut bytes, payload).expect("a frame");
            bytes
        };
        let mut file = Vec::new();
        let mut writer = PcapWriter::new(&mut file).expect("a writer");
        let frames = [
            frame(true, 99, true, &[]),
            frame(false, 499, true, &[]),
            frame(true, 100, false, CONNECT),
            frame(false, 500, false, &[0x20, 3, 0, 0, 0]),
        ];
        for (second, frame) in frames.iter().enumerate() {
            let length = u32::try_from(frame.len()).expect("short");
            writer.write_packet(&PcapPacket::new(Duration::from_secs(second as u64), length, frame)).expect("written");
        }
        let flows = Flows::parse(file.as_slice(), 1883).expect("a capture");
        let client: SocketAddr = "10.91.0.5:40000".parse().expect("an address");
        assert_eq!(flows.opened, [(Duration::ZERO, client)]);
        let kinds: Vec<_> = flows.packets.iter().map(|p| (p.at.as_secs(), p.client, p.sender, p.kind)).collect();
        assert_eq!(kinds, [(2, client, Sender::Client, PacketType::Connect), (3, client, Sender::Broker, PacketType::Connack)]);
    }
}
