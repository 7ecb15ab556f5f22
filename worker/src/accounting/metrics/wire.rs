//! Reading protobuf in place (<https://protobuf.dev/programming-guides/encoding/>): no copies, no allocation, nothing read
//! twice. A round over a thousand workers reads 20 MB of it, most of which is names and help texts to be passed over.

use super::DecodeError;

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    /// A whole number, as it is on the wire.
    Varint(u64),
    /// A double, or another fixed 64-bit number.
    Fixed64(u64),
    /// Text, bytes, an embedded message, or packed numbers.
    Bytes(&'a [u8]),
    /// A fixed 32-bit number, of which metrics have none.
    Fixed32,
}

impl<'a> Value<'a> {
    /// A double.
    pub(super) fn double(self) -> Result<f64, DecodeError> {
        match self {
            Value::Fixed64(bits) => Ok(f64::from_bits(bits)),
            _ => Err(damaged("a double is expected")),
        }
    }

    /// An unsigned whole number.
    pub(super) fn unsigned(self) -> Result<u64, DecodeError> {
        match self {
            Value::Varint(value) => Ok(value),
            _ => Err(damaged("a whole number is expected")),
        }
    }

    /// A whole number in the zigzag form of sint32 and sint64.
    pub(super) fn signed(self) -> Result<i64, DecodeError> {
        self.unsigned().map(zigzag)
    }

    /// Text, bytes or a message.
    pub(super) fn bytes(self) -> Result<&'a [u8], DecodeError> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(damaged("bytes are expected")),
        }
    }

    /// The fields of an embedded message.
    pub(super) fn message(self) -> Result<Message<'a>, DecodeError> {
        self.bytes().map(Message)
    }
}

pub(super) fn damaged(problem: &'static str) -> DecodeError {
    DecodeError::NotProtobuf(problem)
}

fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Takes a varint from the front.
fn varint(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0;
    for (place, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            *bytes = &bytes[place + 1..];
            return if place == 9 && *byte > 1 { Err(damaged("a number has more than 64 bits")) } else { Ok(value) };
        }
    }
    Err(damaged("a number is cut off"))
}

/// Takes bytes that their length precedes from the front: a field's content, or a message of a delimited sequence.
pub(super) fn delimited<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let length = usize::try_from(varint(bytes)?).map_err(|_| damaged("a length is too large"))?;
    let (content, rest) = bytes.split_at_checked(length).ok_or_else(|| damaged("a message is cut off"))?;
    *bytes = rest;
    Ok(content)
}

fn fixed<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let (content, rest) = bytes.split_first_chunk().ok_or_else(|| damaged("a number is cut off"))?;
    *bytes = rest;
    Ok(*content)
}

/// The fields of a message, in the order in which they come. It ends after an error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'a>(pub(super) &'a [u8]);

impl<'a> Message<'a> {
    fn field(&mut self) -> Result<(u64, Value<'a>), DecodeError> {
        let key = varint(&mut self.0)?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut self.0)?),
            1 => Value::Fixed64(u64::from_le_bytes(fixed(&mut self.0)?)),
            2 => Value::Bytes(delimited(&mut self.0)?),
            5 => fixed::<4>(&mut self.0).map(|_| Value::Fixed32)?,
            _ => return Err(damaged("unknown wire type")),
        };
        Ok((key >> 3, value))
    }
}

impl<'a> Iterator for Message<'a> {
    /// Number of the field, and its value.
    type Item = Result<(u64, Value<'a>), DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// Calls `take` for each number of a repeated sint64, whether it stands alone or packed with others.
pub(super) fn each_signed(value: Value<'_>, mut take: impl FnMut(i64)) -> Result<(), DecodeError> {
    match value {
        Value::Varint(value) => take(zigzag(value)),
        Value::Bytes(mut packed) => {
            while !packed.is_empty() {
                take(zigzag(varint(&mut packed)?));
            }
        }
        _ => return Err(damaged("a whole number is expected")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model as model;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use prost::Message as _;

    fn read(bytes: &[u8]) -> Result<model::BucketSpan, DecodeError> {
        let mut span = model::BucketSpan::default();
        for field in Message(bytes) {
            match field? {
                (1, value) => span.offset = value.signed()? as i32,
                (2, value) => span.length = value.unsigned()? as u32,
                _ => {}
            }
        }
        Ok(span)
    }

    #[test]
    fn what_is_cut_off_or_endless_is_an_error() {
        let span = model::BucketSpan { offset: -70_000, length: 300 };
        let bytes = span.encode_to_vec();
        assert_eq!(read(&bytes), Ok(span));
        for end in [1, bytes.len() - 1] {
            assert!(read(&bytes[..end]).is_err());
        }
        assert!(read(&[0xff; 11]).is_err());
        assert!(read(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_err(), "more than 64 bits");
        assert!(read(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]).is_err(), "longer than what there is");
    }

    proptest! {
        #[test]
        fn numbers_are_read_as_prost_writes_them(
            offset in any::<i32>(), length in any::<u32>(), deltas in vec(any::<i64>(), 0..20), sum in -1e300..1e300f64,
        ) {
            let span = model::BucketSpan { offset, length };
            prop_assert_eq!(read(&span.encode_to_vec()), Ok(span));
            let histogram = model::Histogram { positive_delta: deltas.clone(), sample_sum: sum, ..model::Histogram::default() };
            let (mut again, mut told) = (Vec::new(), 0.0f64);
            for field in Message(&histogram.encode_to_vec()) {
                match field.unwrap() {
                    (2, value) => told = value.double().unwrap(),
                    (13, value) => each_signed(value, |delta| again.push(delta)).unwrap(),
                    (number, _) => prop_assert!(false, "field {}", number),
                }
            }
            prop_assert_eq!(again, deltas);
            prop_assert_eq!(told, sum);
        }

        #[test]
        fn any_bytes_are_read_to_their_end_or_to_an_error(bytes in vec(any::<u8>(), 0..200)) {
            let mut ended = false;
            for field in Message(&bytes) {
                prop_assert!(!ended);
                ended = field.is_err();
            }
        }
    }
}
