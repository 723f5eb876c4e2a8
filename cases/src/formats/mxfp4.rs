//! MXFP4 (OCP Microscaling Formats 1.0): 32 e2m1 values share an e8m0 scale.
//!
//! One scale byte `e`, then 16 code bytes; byte i holds value i low and value
//! i + 16 high. The scale is 2^(e−127); byte 0 is 2^-127, which is subnormal in
//! f32, and byte 255 is NaN.

use super::parts::{Parts, pack_nibbles, unpack_nibbles};

pub(super) const BYTES: usize = 1 + 16;

/// The value of each e2m1 code: bit 3 is the sign.
pub const E2M1: [f64; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The value of an e8m0 scale byte.
pub fn decode_scale(e: u8) -> f64 {
    match e {
        255 => f64::NAN,
        // 2^(e-127) as the exponent field of an f64, whose bias is 1023.
        _ => f64::from_bits((u64::from(e) + 1023 - 127) << 52),
    }
}

#[inline(always)]
pub(super) fn decode(block: &[u8], out: &mut [f64]) {
    let scale = decode_scale(block[0]);
    for (o, code) in out.iter_mut().zip(unpack_nibbles(&block[1..])) {
        *o = scale * E2M1[usize::from(code)];
    }
}

pub(super) fn encode(parts: &Parts, out: &mut [u8]) {
    out[0] = parts.scale as u8;
    pack_nibbles(&parts.codes, &mut out[1..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_bytes() {
        assert_eq!(decode_scale(127), 1.0);
        assert_eq!(decode_scale(0), 2f64.powi(-127));
        assert_eq!(decode_scale(0) as f32, f32::from_bits(0x0040_0000));
        assert_eq!(decode_scale(254), 2f64.powi(127));
        assert!(decode_scale(255).is_nan());
        for e in 0..=254u8 {
            assert_eq!(decode_scale(e), 2f64.powi(i32::from(e) - 127));
        }
    }

    #[test]
    fn codes_are_e2m1() {
        for code in 0..16u8 {
            let (exp, man) = (i32::from(code >> 1 & 3), f64::from(code & 1));
            let magnitude = if exp == 0 { man * 0.5 } else { (1.0 + man / 2.0) * 2f64.powi(exp - 1) };
            assert_eq!(E2M1[usize::from(code)].abs(), magnitude);
            assert_eq!(E2M1[usize::from(code)].is_sign_negative(), code >= 8);
        }
    }

    #[test]
    fn layout_and_values() {
        let mut block = [0u8; BYTES];
        let mut parts = Parts { scale: 128, ..Parts::default() };
        (parts.codes[0], parts.codes[16], parts.codes[31]) = (7, 15, 1);
        encode(&parts, &mut block);
        assert_eq!((block[0], block[1], block[16]), (128, 0xf7, 0x10));
        let mut out = [0f64; 32];
        decode(&block, &mut out);
        assert_eq!((out[0], out[16], out[31], out[1]), (12.0, -12.0, 1.0, 0.0));
        encode(&Parts { scale: 255, ..parts }, &mut block);
        decode(&block, &mut out);
        assert!(out.iter().all(|v| v.is_nan()));
    }
}
