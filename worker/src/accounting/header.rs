//! The accounting header: 24 bytes that a message carries, so that a receiver knows who sent it, which one it is and when
//! it was due. Big-endian, as everything in MQTT.
//!
//! | bytes | field |
//! | --- | --- |
//! | 1 | version, [`VERSION`] |
//! | 1 | publish entry within the sender's group |
//! | 2 | attempt of the sender's shard |
//! | 4 | tag of the run |
//! | 4 | rank of the sender over all groups |
//! | 4 | the sender's slot number in the entry |
//! | 8 | instant at which the message was due, ns since the Unix epoch |

/// Bytes of a header.
pub const LENGTH: usize = 24;
/// First byte of a header. It is no letter, so that text payloads are not taken for headers.
pub const VERSION: u8 = 0xA1;

/// What a message says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Index of the publish entry in the sender's group.
    pub entry: u8,
    /// Number of attempts of the sender's shard before this one.
    pub attempt: u16,
    /// Tag of the run: messages of another run are foreign.
    pub run_tag: u32,
    /// The sender's rank over all groups.
    pub client: u32,
    /// The sender's slot number.
    pub seq: u32,
    /// When it was due, in ns since the Unix epoch.
    pub due_unix_ns: u64,
}

impl Header {
    /// The bytes on the wire.
    pub fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0] = VERSION;
        bytes[1] = self.entry;
        bytes[2..4].copy_from_slice(&self.attempt.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.run_tag.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.client.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.seq.to_be_bytes());
        bytes[16..].copy_from_slice(&self.due_unix_ns.to_be_bytes());
        bytes
    }

    /// Reads a header from the front of some bytes. `None` where there is none of this run.
    pub fn decode(bytes: &[u8], run_tag: u32) -> Option<Header> {
        let bytes: &[u8; LENGTH] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        (bytes[0] == VERSION && word(4) == run_tag).then(|| Header {
            entry: bytes[1],
            attempt: u16::from_be_bytes([bytes[2], bytes[3]]),
            run_tag,
            client: word(8),
            seq: word(12),
            due_unix_ns: u64::from(word(16)) << 32 | u64::from(word(20)),
        })
    }

    /// What one delivery of this message adds to a fingerprint.
    pub fn fingerprint(&self) -> u64 {
        fingerprint(self.client, self.entry, self.seq)
    }
}

/// What one delivery of a message adds to a fingerprint: a mix of everything that names the message.
pub fn fingerprint(client: u32, entry: u8, seq: u32) -> u64 {
    mix64((u64::from(client) << 32 | u64::from(seq)) ^ u64::from(entry).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// The finaliser of SplitMix64: a bijection under which sums of distinct inputs hardly ever agree by chance.
pub fn mix64(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_reads_back_and_only_in_its_own_run(
            entry in 0u8..16, attempt: u16, run_tag: u32, client: u32, seq: u32, due_unix_ns: u64, other: u32,
        ) {
            let header = Header { entry, attempt, run_tag, client, seq, due_unix_ns };
            let mut bytes = header.encode().to_vec();
            bytes.extend_from_slice(b"payload");
            prop_assert_eq!(Header::decode(&bytes, run_tag), Some(header));
            prop_assert_eq!(Header::decode(&bytes, other).is_some(), other == run_tag);
            prop_assert_eq!(Header::decode(&bytes[..LENGTH - 1], run_tag), None);
        }
    }

    #[test]
    fn messages_that_differ_in_anything_have_different_fingerprints() {
        let mut seen = std::collections::HashSet::new();
        for client in 0..50 {
            for entry in 0..16 {
                for seq in 0..50 {
                    assert!(seen.insert(fingerprint(client, entry, seq)));
                }
            }
        }
    }
}
