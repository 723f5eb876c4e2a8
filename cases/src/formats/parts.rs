//! The parts of a block, whatever its format: what generators choose and formats write.

/// Scales and codes of one block. A format takes what it has and ignores the rest.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The block's scale: f16 bits, or the e8m0 byte.
    pub scale: u16,
    /// The block's second f16: the minimum of q4_1 and q5_1, the scale of minima of q4_K.
    pub min: u16,
    /// Scales of sub-blocks: 8 of six bits (q4_K), 16 signed bytes (q6_K).
    pub sub_scales: [u8; 16],
    /// Minima of sub-blocks: 8 of six bits (q4_K).
    pub sub_mins: [u8; 8],
    /// Codes in element order, as many as the block has elements.
    pub codes: [u8; 256],
}

impl Default for Parts {
    fn default() -> Self {
        Parts { scale: 0, min: 0, sub_scales: [1; 16], sub_mins: [0; 8], codes: [0; 256] }
    }
}

/// The nibbles of 16 code bytes in element order: byte i holds element i low and element i + 16 high.
pub(super) fn unpack_nibbles(bytes: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

/// Writes the low four bits of 32 codes, as [`unpack_nibbles`] reads them.
pub(super) fn pack_nibbles(codes: &[u8], out: &mut [u8]) {
    let (low, high) = codes[..32].split_at(16);
    out.iter_mut().zip(low).zip(high).for_each(|((byte, low), high)| *byte = low & 15 | high << 4);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_keep_element_order() {
        let codes: [u8; 32] = std::array::from_fn(|i| (i as u8 * 7) & 15);
        let mut packed = [0u8; 16];
        pack_nibbles(&codes, &mut packed);
        assert_eq!(packed[0], codes[0] | codes[16] << 4);
        assert_eq!(unpack_nibbles(&packed), codes);
    }
}
