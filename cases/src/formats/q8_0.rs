//! q8_0: 32 values share an f16 scale; value = d·code, codes −128..=127.

use half::f16;

pub(super) const BYTES: usize = 2 + 32;

pub(super) fn decode(block: &[u8], out: &mut [f64]) {
    let d = f16::from_le_bytes([block[0], block[1]]).to_f64();
    for (o, code) in out.iter_mut().zip(&block[2..]) {
        *o = d * f64::from(*code as i8);
    }
}

pub(super) fn encode(scale: u16, codes: &[u8; 32], out: &mut [u8]) {
    out[..2].copy_from_slice(&scale.to_le_bytes());
    out[2..].copy_from_slice(codes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_and_values() {
        let mut block = [0u8; BYTES];
        let codes: [u8; 32] = std::array::from_fn(|i| ((i as i32) * 8 - 128) as u8);
        encode(f16::from_f32(0.25).to_bits(), &codes, &mut block);
        assert_eq!(block[..4], [0x00, 0x34, 0x80, 0x88]);
        let mut out = [0f64; 32];
        decode(&block, &mut out);
        assert_eq!((out[0], out[16], out[31]), (-32.0, 0.0, 30.0));
    }
}
