//! The 256-wide formats q4_K and q6_K: sub-blocks with scales of their own inside a block.

use super::legacy::read_f16;
use super::parts::Parts;

/// q4_K: f16 `d`, f16 `dmin`, 12 bytes with 8 six-bit scales and 8 six-bit minima, 128 bytes of nibbles.
/// Sub-blocks have 32 elements; value = d·scale·code − dmin·min.
pub(super) mod q4_k {
    use super::*;

    pub(in super::super) const BYTES: usize = 4 + 12 + 128;

    /// Scale and minimum of sub-block `j`. The first four keep their six bits in one byte each; the other four have
    /// their low nibbles in the last four bytes and their upper two bits above those of the first.
    fn sub_block(packed: &[u8], j: usize) -> (u8, u8) {
        if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            let low = packed[j + 4];
            (low & 15 | packed[j - 4] >> 6 << 4, low >> 4 | packed[j] >> 6 << 4)
        }
    }

    #[inline(always)]
    pub(in super::super) fn decode(block: &[u8], out: &mut [f64]) {
        let (d, dmin) = (read_f16(block), read_f16(&block[2..]));
        let (packed, codes) = (&block[4..16], &block[16..]);
        for (j, out) in out.chunks_exact_mut(32).enumerate() {
            let (scale, min) = sub_block(packed, j);
            let (scale, min) = (d * f64::from(scale), dmin * f64::from(min));
            // Two sub-blocks share 32 bytes: the even one has the low nibbles.
            let shift = j % 2 * 4;
            for (o, byte) in out.iter_mut().zip(&codes[j / 2 * 32..][..32]) {
                *o = scale * f64::from(byte >> shift & 15) - min;
            }
        }
    }

    /// The minima, which a device may multiply with the sums of the activations.
    pub(in super::super) fn offsets(block: &[u8], out: &mut [f64]) {
        let dmin = read_f16(&block[2..]);
        for (j, out) in out.chunks_exact_mut(32).enumerate() {
            out.fill(-dmin * f64::from(sub_block(&block[4..16], j).1));
        }
    }

    pub(in super::super) fn encode(parts: &Parts, out: &mut [u8]) {
        out[..2].copy_from_slice(&parts.scale.to_le_bytes());
        out[2..4].copy_from_slice(&parts.min.to_le_bytes());
        let (scales, mins) = (&parts.sub_scales, &parts.sub_mins);
        for j in 0..4 {
            out[4 + j] = scales[j] & 63 | scales[j + 4] >> 4 << 6;
            out[8 + j] = mins[j] & 63 | mins[j + 4] >> 4 << 6;
            out[12 + j] = scales[j + 4] & 15 | mins[j + 4] << 4;
        }
        for (bytes, codes) in out[16..].chunks_exact_mut(32).zip(parts.codes.chunks_exact(64)) {
            let (low, high) = codes.split_at(32);
            bytes.iter_mut().zip(low).zip(high).for_each(|((byte, low), high)| *byte = low & 15 | high << 4);
        }
    }
}

/// q6_K: 128 bytes with the low four bits, 64 with the upper two, 16 signed scales, f16 `d`.
/// Sub-blocks have 16 elements; value = d·scale·(code − 32).
pub(super) mod q6_k {
    use super::*;

    pub(in super::super) const BYTES: usize = 128 + 64 + 16 + 2;

    /// Elements whose codes lie at the same shifts.
    const RUN: usize = 32;

    /// Where the codes of a run of elements lie: byte and shift of their low four bits, byte and shift of their upper two.
    fn place(run: usize) -> (usize, u32, usize, u32) {
        let (half, quarter) = (run / 4, run % 4);
        (half * 64 + quarter % 2 * RUN, quarter as u32 / 2 * 4, half * RUN, quarter as u32 * 2)
    }

    #[inline(always)]
    pub(in super::super) fn decode(block: &[u8], out: &mut [f64]) {
        let (low, rest) = block.split_at(128);
        let (high, rest) = rest.split_at(64);
        let d = read_f16(&rest[16..]);
        let scales = rest[..16].chunks_exact(2);
        for (run, (out, scales)) in out.chunks_exact_mut(RUN).zip(scales).enumerate() {
            let (l, l_shift, h, h_shift) = place(run);
            let codes = low[l..][..RUN].iter().zip(&high[h..][..RUN]);
            for (i, (o, (low, high))) in out.iter_mut().zip(codes).enumerate() {
                let code = low >> l_shift & 15 | (high >> h_shift & 3) << 4;
                *o = d * f64::from(scales[i / 16] as i8) * (f64::from(code) - 32.0);
            }
        }
    }

    /// The centres of the codes, which a device may multiply with the sums of the activations.
    pub(in super::super) fn offsets(block: &[u8], out: &mut [f64]) {
        let d = read_f16(&block[208..]);
        for (i, o) in out.iter_mut().enumerate() {
            *o = -32.0 * d * f64::from(block[192 + i / 16] as i8);
        }
    }

    pub(in super::super) fn encode(parts: &Parts, out: &mut [u8]) {
        out[..192].fill(0);
        let (low, high) = out[..192].split_at_mut(128);
        for (run, codes) in parts.codes.chunks_exact(RUN).enumerate() {
            let (l, l_shift, h, h_shift) = place(run);
            let bytes = low[l..][..RUN].iter_mut().zip(&mut high[h..][..RUN]);
            for (code, (low, high)) in codes.iter().zip(bytes) {
                *low |= (code & 15) << l_shift;
                *high |= (code >> 4 & 3) << h_shift;
            }
        }
        out[192..208].copy_from_slice(&parts.sub_scales);
        out[208..].copy_from_slice(&parts.scale.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    fn parts() -> Parts {
        Parts {
            scale: f16::from_f32(0.5).to_bits(),
            min: f16::from_f32(0.25).to_bits(),
            sub_scales: std::array::from_fn(|i| (i as u8 * 11 + 5) & 63),
            sub_mins: std::array::from_fn(|i| (i as u8 * 7 + 20) & 63),
            codes: std::array::from_fn(|i| (i * 37 + i / 32) as u8 & 63),
        }
    }

    #[test]
    fn q4_k_round_trip() {
        let p = parts();
        let mut block = [0; q4_k::BYTES];
        q4_k::encode(&p, &mut block);
        let (mut w, mut o) = ([0.0; 256], [0.0; 256]);
        q4_k::decode(&block, &mut w);
        q4_k::offsets(&block, &mut o);
        for i in 0..256 {
            let (scale, min) = (f64::from(p.sub_scales[i / 32]), f64::from(p.sub_mins[i / 32]));
            assert_eq!(w[i], 0.5 * scale * f64::from(p.codes[i] & 15) - 0.25 * min, "{i}");
            assert_eq!(o[i], -0.25 * min);
        }
    }

    /// Six-bit fields by hand: scale 0 is 1, scale 4 is 0x2f, minimum 0 is 2, minimum 4 is 0x31.
    #[test]
    fn q4_k_packing() {
        let mut p = Parts { sub_scales: [0; 16], ..Parts::default() };
        (p.sub_scales[0], p.sub_scales[4], p.sub_mins[0], p.sub_mins[4]) = (1, 0x2f, 2, 0x31);
        let mut block = [0; q4_k::BYTES];
        q4_k::encode(&p, &mut block);
        assert_eq!(block[4..16], [0x81, 0, 0, 0, 0xc2, 0, 0, 0, 0x1f, 0, 0, 0]);
    }

    #[test]
    fn q6_k_round_trip() {
        let mut p = parts();
        p.sub_scales[3] = -100i8 as u8;
        let mut block = [0; q6_k::BYTES];
        q6_k::encode(&p, &mut block);
        let (mut w, mut o) = ([0.0; 256], [0.0; 256]);
        q6_k::decode(&block, &mut w);
        q6_k::offsets(&block, &mut o);
        for i in 0..256 {
            let scale = f64::from(p.sub_scales[i / 16] as i8);
            assert_eq!(w[i], 0.5 * scale * (f64::from(p.codes[i]) - 32.0), "{i}");
            assert_eq!(o[i], -16.0 * scale);
        }
    }

    /// Elements 0, 32, 64 and 96 of a half share byte 0 of the upper bits; 0 and 64 share byte 0 of the lower ones.
    #[test]
    fn q6_k_packing() {
        let mut p = Parts::default();
        (p.codes[0], p.codes[32], p.codes[64], p.codes[96], p.codes[128]) = (0x11, 0x22, 0x33, 0x04, 0x0f);
        let mut block = [0; q6_k::BYTES];
        q6_k::encode(&p, &mut block);
        assert_eq!((block[0], block[32], block[64], block[128]), (0x31, 0x42, 0x0f, 0b00_11_10_01));
    }
}
