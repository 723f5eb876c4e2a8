//! q4_0: 32 values share an f16 scale; value = d·(code − 8), codes 0..=15.

use half::f16;

pub(super) const BYTES: usize = 2 + 16;

pub(super) fn decode(block: &[u8], out: &mut [f64]) {
    let d = f16::from_le_bytes([block[0], block[1]]).to_f64();
    for (o, code) in out.iter_mut().zip(super::unpack_nibbles(&block[2..])) {
        *o = d * (f64::from(code) - 8.0);
    }
}

pub(super) fn encode(scale: u16, codes: &[u8; 32], out: &mut [u8]) {
    out[..2].copy_from_slice(&scale.to_le_bytes());
    super::pack_nibbles(codes, &mut out[2..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_and_values() {
        let mut block = [0u8; BYTES];
        let codes: [u8; 32] = std::array::from_fn(|i| (i as u8) & 15);
        encode(f16::from_f32(-0.5).to_bits(), &codes, &mut block);
        assert_eq!(block[..4], [0x00, 0xb8, 0x00, 0x11]);
        let mut out = [0f64; 32];
        decode(&block, &mut out);
        for (i, v) in out.iter().enumerate() {
            assert_eq!(*v, -0.5 * ((i % 16) as f64 - 8.0));
        }
    }
}
