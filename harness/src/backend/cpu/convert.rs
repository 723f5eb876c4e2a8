//! Stages convert and restore: mxfp4 weights between blocks in rows and the interleaved layout.
//!
//! Weights are `[k, m, experts]`. The scale of block `c` of a row goes to
//! `scales[(expert * k/32 + c) * m + row]`, its 32 codes, in element order and
//! eight a word, to `codes[((expert * k/32 + c) * 4 + word) * m + row]`.
//! Restore is the exact inverse for every byte pattern, NaN scales and negative
//! zeros included. Guards against: a view whose margins are taken for weights
//! (only the view's own blocks move), and positions kept in 32 bits.

use conform_cases::plan::Tensor;
use rayon::prelude::*;

use super::arguments::{Interleaved, View};

/// Bytes of a stored block: its scale, then 16 bytes of codes.
const BLOCK_BYTES: usize = 17;
/// Values in a block.
const BLOCK_LEN: usize = 32;

/// Converts the blocks of a view of mxfp4 weights.
pub(super) fn convert(blocks: View<'_>, scales: &mut [u8], codes: &mut [u32]) {
    let [k, m, ..] = blocks.tensor.shape;
    let in_row = k / BLOCK_LEN;
    let each = scales.par_chunks_mut(m).zip(codes.par_chunks_mut(4 * m)).enumerate();
    each.for_each(|(at, (scales, codes))| {
        let (expert, block) = (at / in_row, at % in_row);
        for row in 0..m {
            let stored = &blocks.row([row, expert, 0])[block * BLOCK_BYTES..][..BLOCK_BYTES];
            let (scale, words) = unpack(stored);
            scales[row] = scale;
            for (word, value) in words.into_iter().enumerate() {
                codes[word * m + row] = value;
            }
        }
    });
}

/// Writes interleaved weights back into the view's blocks of an allocation; bytes outside the view stay.
pub(super) fn restore(weights: Interleaved<'_>, tensor: &Tensor, allocation: &mut [u8]) {
    let [k, m, ..] = tensor.shape;
    let in_row = k / BLOCK_LEN;
    let first = tensor.start[0] / BLOCK_LEN * BLOCK_BYTES;
    allocation.par_chunks_mut(tensor.parent_row_bytes()).enumerate().for_each(|(parent_row, bytes)| {
        let Some([row, expert, _]) = tensor.view_row(parent_row) else { return };
        let stored = bytes[first..][..tensor.row_bytes()].chunks_exact_mut(BLOCK_BYTES);
        for (block, stored) in stored.enumerate() {
            let at = expert * in_row + block;
            let words = [0, 1, 2, 3].map(|word| weights.codes[(at * 4 + word) * m + row]);
            pack(weights.scales[at * m + row], words, stored);
        }
    });
}

/// The scale and the code words of a stored block.
///
/// Byte `i` of the codes holds value `i` low and value `i + 16` high, so the low nibbles of eight
/// neighbouring bytes are one word, and their high nibbles the word two further on.
fn unpack(stored: &[u8]) -> (u8, [u32; 4]) {
    let bytes = |from: usize| stored[from..from + 8].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
    let (head, tail) = (bytes(1), bytes(9));
    (stored[0], [gather(head), gather(tail), gather(head >> 4), gather(tail >> 4)])
}

/// The inverse of [`unpack`].
fn pack(scale: u8, words: [u32; 4], stored: &mut [u8]) {
    stored[0] = scale;
    let halves = [(words[0], words[2]), (words[1], words[3])];
    for (bytes, (low, high)) in stored[1..].chunks_exact_mut(8).zip(halves) {
        bytes.copy_from_slice(&(spread(low) | spread(high) << 4).to_le_bytes());
    }
}

/// The low nibble of each byte, side by side.
fn gather(bytes: u64) -> u32 {
    let x = bytes & 0x0f0f_0f0f_0f0f_0f0f;
    let x = (x | x >> 4) & 0x00ff_00ff_00ff_00ff;
    let x = (x | x >> 8) & 0x0000_ffff_0000_ffff;
    (x | x >> 16) as u32
}

/// Each nibble as the low half of a byte: the inverse of [`gather`].
fn spread(nibbles: u32) -> u64 {
    let x = u64::from(nibbles);
    let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::formats::{ElemType, Parts};
    use conform_cases::plan::Role;

    /// Pseudo-random bytes in which every value of a byte occurs at every place of a block.
    fn blocks(count: usize) -> Vec<u8> {
        (0..count * BLOCK_BYTES).map(|i| (i * 167 + i / BLOCK_BYTES * 31) as u8).collect()
    }

    #[test]
    fn words_hold_codes_in_element_order() {
        let codes: [u8; 256] = std::array::from_fn(|i| ((i * 5 + 3) & 15) as u8);
        let mut stored = [0; BLOCK_BYTES];
        ElemType::Mxfp4.encode_block(&Parts { scale: 200, codes, ..Parts::default() }, &mut stored);
        let (scale, words) = unpack(&stored);
        assert_eq!(scale, 200);
        for (i, code) in codes[..BLOCK_LEN].iter().enumerate() {
            assert_eq!((words[i / 8] >> (4 * (i % 8))) as u8 & 15, *code, "value {i}");
        }
    }

    #[test]
    fn every_byte_pattern_comes_back() {
        for pattern in 0..=255u8 {
            for place in 0..BLOCK_BYTES {
                let mut stored = [!pattern; BLOCK_BYTES];
                stored[place] = pattern;
                let (scale, words) = unpack(&stored);
                let mut back = [0; BLOCK_BYTES];
                pack(scale, words, &mut back);
                assert_eq!(back, stored);
            }
        }
    }

    #[test]
    fn layout_and_round_trip_of_a_view() {
        let tensor = Tensor::whole("w", ElemType::Mxfp4, [96, 5, 3, 1], Role::Weights).with_margins([true; 4]);
        let before = blocks(tensor.parent_bytes() / BLOCK_BYTES);
        let (mut scales, mut codes) = (vec![0; 3 * 5 * 3], vec![0; 4 * 3 * 5 * 3]);
        convert(View { tensor: &tensor, bytes: &before }, &mut scales, &mut codes);

        let (row, expert, block) = (3, 2, 1);
        let stored = &before[tensor.row_range([row, expert, 0])][block * BLOCK_BYTES..];
        assert_eq!(scales[(expert * 3 + block) * 5 + row], stored[0]);
        assert_eq!(codes[((expert * 3 + block) * 4 + 2) * 5 + row] & 15, u32::from(stored[1] >> 4));

        // Margins must survive as they are, and the view must come from the converted form alone.
        let mut after = before.clone();
        for row in (0..tensor.parent_rows()).filter_map(|r| tensor.view_row(r)) {
            after[tensor.row_range(row)].fill(0);
        }
        assert_ne!(after, before);
        restore(Interleaved { scales: &scales, codes: &codes }, &tensor, &mut after);
        assert_eq!(after, before);
    }
}
