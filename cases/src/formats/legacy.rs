//! The 32-wide block formats with one f16 scale, and with a minimum in some: q4_0, q4_1, q5_0, q5_1, q8_0.
//!
//! Layout of a block: f16 scale `d`; f16 minimum `m` (q4_1, q5_1); four bytes with the fifth bits (q5_0, q5_1: bit i
//! belongs to element i); then 16 bytes of nibbles, or 32 signed bytes (q8_0).

use half::f16;

use super::parts::{Parts, pack_nibbles};

/// What tells the formats apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bits of a code: 4, 5 or 8.
    pub(super) bits: u32,
    /// There is a minimum; else codes are centred (q4_0, q5_0) or signed (q8_0).
    pub(super) has_min: bool,
}

impl Layout {
    pub(super) fn bytes(self) -> usize {
        let min = if self.has_min { 2 } else { 0 };
        2 + min + self.bits as usize * 4
    }

    /// What is subtracted from a code.
    fn centre(self) -> f64 {
        match (self.has_min, self.bits) {
            (false, 4) => 8.0,
            (false, 5) => 16.0,
            _ => 0.0,
        }
    }

    fn min(self, block: &[u8]) -> f64 {
        if self.has_min { read_f16(&block[2..]) } else { 0.0 }
    }

    #[inline(always)]
    pub(super) fn decode(self, block: &[u8], out: &mut [f64]) {
        let (d, m, centre) = (read_f16(block), self.min(block), self.centre());
        let value = |code: f64| d * (code - centre) + m;
        let body = &block[if self.has_min { 4 } else { 2 }..];
        // Plain loops: what an iterator's `for_each` is given is compiled for any processor.
        if self.bits == 8 {
            for (o, code) in out.iter_mut().zip(body) {
                *o = value(f64::from(*code as i8));
            }
            return;
        }
        // Byte i holds element i low and element i + 16 high.
        let (low, high) = out.split_at_mut(16);
        let pairs = low.iter_mut().zip(high);
        if self.bits == 4 {
            for ((low, high), byte) in pairs.zip(body) {
                (*low, *high) = (value(f64::from(byte & 15)), value(f64::from(byte >> 4)));
            }
            return;
        }
        let (fifths, nibbles) = body.split_at(4);
        let fifths = u32::from_le_bytes([fifths[0], fifths[1], fifths[2], fifths[3]]);
        let fifth = |i: usize| ((fifths >> i) as u8) << 4 & 16;
        for (i, ((low, high), byte)) in pairs.zip(nibbles).enumerate() {
            (*low, *high) = (value(f64::from(byte & 15 | fifth(i))), value(f64::from(byte >> 4 | fifth(i + 16))));
        }
    }

    /// The part that a device may multiply with the sum of the block's activations: the minimum, or with
    /// `centres` the centre of the codes.
    pub(super) fn offsets(self, block: &[u8], centres: bool, out: &mut [f64]) {
        let centre = if centres { -self.centre() * read_f16(block) } else { 0.0 };
        out.fill(self.min(block) + centre);
    }

    pub(super) fn encode(self, parts: &Parts, out: &mut [u8]) {
        let codes = &parts.codes[..32];
        out[..2].copy_from_slice(&parts.scale.to_le_bytes());
        let body = if self.has_min {
            out[2..4].copy_from_slice(&parts.min.to_le_bytes());
            &mut out[4..]
        } else {
            &mut out[2..]
        };
        match self.bits {
            8 => body.copy_from_slice(codes),
            5 => {
                let high = codes.iter().rev().fold(0u32, |bits, code| bits << 1 | u32::from(code >> 4 & 1));
                body[..4].copy_from_slice(&high.to_le_bytes());
                pack_nibbles(codes, &mut body[4..]);
            }
            _ => pack_nibbles(codes, body),
        }
    }
}

pub(super) fn read_f16(bytes: &[u8]) -> f64 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(layout: Layout, d: f32, m: f32, code: impl Fn(usize) -> u8) -> (Vec<u8>, [f64; 32]) {
        let mut parts =
            Parts { scale: f16::from_f32(d).to_bits(), min: f16::from_f32(m).to_bits(), ..Parts::default() };
        (0..32).for_each(|i| parts.codes[i] = code(i));
        let mut bytes = vec![0; layout.bytes()];
        layout.encode(&parts, &mut bytes);
        let mut out = [0.0; 32];
        layout.decode(&bytes, &mut out);
        (bytes, out)
    }

    #[test]
    fn q4_0() {
        let (bytes, out) = block(Layout { bits: 4, has_min: false }, -0.5, 9.0, |i| i as u8 & 15);
        assert_eq!((bytes.len(), &bytes[..4]), (18, &[0x00, 0xb8, 0x00, 0x11][..]));
        assert!((0..32).all(|i| out[i] == -0.5 * ((i % 16) as f64 - 8.0)));
    }

    #[test]
    fn q4_1() {
        let (bytes, out) = block(Layout { bits: 4, has_min: true }, 0.5, -3.0, |i| i as u8 & 15);
        assert_eq!((bytes.len(), &bytes[..5]), (20, &[0x00, 0x38, 0x00, 0xc2, 0x00][..]));
        assert!((0..32).all(|i| out[i] == 0.5 * (i % 16) as f64 - 3.0));
    }

    #[test]
    fn q5_0_and_q5_1() {
        let (bytes, out) = block(Layout { bits: 5, has_min: false }, 0.5, 0.0, |i| i as u8);
        // Elements 16 to 31 have the fifth bit.
        assert_eq!((bytes.len(), &bytes[2..7]), (22, &[0x00, 0x00, 0xff, 0xff, 0x00][..]));
        assert!((0..32).all(|i| out[i] == 0.5 * (i as f64 - 16.0)));
        let (bytes, out) = block(Layout { bits: 5, has_min: true }, 0.5, 1.0, |i| 31 - i as u8);
        assert_eq!((bytes.len(), &bytes[4..9]), (24, &[0xff, 0xff, 0x00, 0x00, 0xff][..]));
        assert!((0..32).all(|i| out[i] == 0.5 * (31 - i) as f64 + 1.0));
    }

    #[test]
    fn q8_0() {
        let (bytes, out) = block(Layout { bits: 8, has_min: false }, 0.25, 0.0, |i| (i as i32 * 8 - 128) as u8);
        assert_eq!((bytes.len(), &bytes[..4]), (34, &[0x00, 0x34, 0x80, 0x88][..]));
        assert_eq!((out[0], out[16], out[31]), (-32.0, 0.0, 30.0));
    }

    #[test]
    fn offsets_and_the_rest_add_up() {
        let layout = Layout { bits: 5, has_min: false };
        let (bytes, w) = block(layout, 0.5, 0.0, |i| i as u8);
        let mut o = [0.0; 32];
        layout.offsets(&bytes, true, &mut o);
        assert!((0..32).all(|i| o[i] == -8.0 && w[i] - o[i] == 0.5 * i as f64));
        layout.offsets(&bytes, false, &mut o);
        assert_eq!(o, [0.0; 32]);
        let layout = Layout { bits: 4, has_min: true };
        layout.offsets(&block(layout, 0.5, -3.0, |_| 0).0, true, &mut o);
        assert_eq!(o, [-3.0; 32]);
    }
}
