//! Weight tiles: 64 rows of 16 values in f32, from any weight type.
//!
//! A panel is the 64 rows of one expert that a task works on. Its loader hands
//! out tiles `[k][row]`, with zeros in rows beyond the expert (m need not be a
//! multiple of 64) and in columns beyond k (nor k of 16). An element is one f32:
//! code times scale, exact for every finite result, infinite where mxfp4 leaves
//! the range of f32; types with minima are rounded once, when theirs is added.
//! Nothing passes through f16, where large scales overflow.

use super::arguments::{Interleaved, Sizes, TILE_K, TILE_ROWS, View};

/// Weights of a tile, `[k][row]`.
pub(super) type WeightTile = [[f32; TILE_ROWS]; TILE_K];

/// Loads the tiles of one panel.
pub(super) trait Panel {
    /// Loads columns `k0..k0 + depth`. `tile` is either zero or the result of an earlier load of this panel.
    fn load(&self, k0: usize, depth: usize, tile: &mut WeightTile);
}

/// The value of an e2m1 code, given in the low four bits: bit 3 is the sign.
///
/// Twice the magnitude is an integer that fits a nibble, so eight of them are one constant.
#[inline(always)]
pub(super) fn e2m1(code: u32) -> f32 {
    const TWICE: u32 = 0xc864_3210;
    let magnitude = ((TWICE >> ((code & 7) * 4)) & 15) as i32 as f32 * 0.5;
    f32::from_bits(magnitude.to_bits() | (code & 8) << 28)
}

/// The value of an e8m0 scale byte: 2^(e-127), subnormal for 0, NaN for 255.
#[inline(always)]
pub(super) fn e8m0(e: u8) -> f32 {
    f32::from_bits(match e {
        0 => 0x0040_0000,
        255 => 0x7fc0_0000,
        _ => u32::from(e) << 23,
    })
}

/// A panel of converted mxfp4 weights.
pub(super) struct InterleavedPanel<'a> {
    weights: Interleaved<'a>,
    m: usize,
    /// The expert's first block.
    first_block: usize,
    first_row: usize,
    /// Rows that exist.
    rows: usize,
}

impl<'a> InterleavedPanel<'a> {
    pub(super) fn new(weights: Interleaved<'a>, sizes: Sizes, expert: usize, panel: usize) -> Self {
        let first_row = panel * TILE_ROWS;
        let rows = TILE_ROWS.min(sizes.m - first_row);
        InterleavedPanel { weights, m: sizes.m, first_block: expert * (sizes.k / 32), first_row, rows }
    }

    /// The scales of block `block` of every row.
    #[inline(always)]
    pub(super) fn scales(&self, block: usize) -> [f32; TILE_ROWS] {
        let from = (self.first_block + block) * self.m + self.first_row;
        let mut bytes = [0; TILE_ROWS];
        bytes[..self.rows].copy_from_slice(&self.weights.scales[from..from + self.rows]);
        bytes.map(e8m0)
    }

    /// Code word `word` of block `block` of every row.
    #[inline(always)]
    pub(super) fn words(&self, block: usize, word: usize) -> [u32; TILE_ROWS] {
        let from = ((self.first_block + block) * 4 + word) * self.m + self.first_row;
        let mut words = [0; TILE_ROWS];
        words[..self.rows].copy_from_slice(&self.weights.codes[from..from + self.rows]);
        words
    }
}

impl Panel for InterleavedPanel<'_> {
    #[inline(always)]
    fn load(&self, k0: usize, _depth: usize, tile: &mut WeightTile) {
        let (block, first_word) = (k0 / 32, k0 % 32 / 8);
        let scales = self.scales(block);
        for (word, columns) in tile.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let words = self.words(block, first_word + word);
            for (i, column) in columns.iter_mut().enumerate() {
                for row in 0..TILE_ROWS {
                    column[row] = e2m1(words[row] >> (4 * i)) * scales[row];
                }
            }
        }
    }
}

/// A panel of weights where they were written, with the decoder of their type.
pub(super) struct RowPanel<'a, D> {
    /// Rows that do not exist are empty.
    rows: [&'a [u8]; TILE_ROWS],
    /// Decodes a row from a column on: at most [`TILE_K`] values, and the column is a multiple of that.
    decode: D,
}

impl<'a, D: Fn(&[u8], usize, &mut [f32])> RowPanel<'a, D> {
    pub(super) fn new(weights: View<'a>, sizes: Sizes, expert: usize, panel: usize, decode: D) -> Self {
        let mut rows: [&[u8]; TILE_ROWS] = [&[]; TILE_ROWS];
        for (row, bytes) in (panel * TILE_ROWS..sizes.m).zip(&mut rows) {
            *bytes = weights.row([row, expert, 0]);
        }
        RowPanel { rows, decode }
    }
}

impl<D: Fn(&[u8], usize, &mut [f32])> Panel for RowPanel<'_, D> {
    #[inline(always)]
    fn load(&self, k0: usize, depth: usize, tile: &mut WeightTile) {
        for (row, bytes) in self.rows.iter().enumerate().take_while(|(_, bytes)| !bytes.is_empty()) {
            let mut values = [0.0; TILE_K];
            (self.decode)(bytes, k0, &mut values[..depth]);
            for (column, value) in tile.iter_mut().zip(values) {
                column[row] = value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{decode, decode_k};
    use super::*;
    use conform_cases::formats::{E2M1, ElemType, mxfp4_scale};
    use conform_cases::plan::{Role, Tensor};
    use conform_cases::stream::Stream;

    #[test]
    fn codes_and_scales_have_their_values() {
        for code in 0..16 {
            assert_eq!(e2m1(code | 0xf0).to_bits(), (E2M1[code as usize] as f32).to_bits());
        }
        for e in 0..=255 {
            let want = mxfp4_scale(e) as f32;
            assert!(e8m0(e).to_bits() == want.to_bits() || e == 255 && e8m0(e).is_nan());
        }
    }

    /// Every byte pattern, so scales may be infinite and NaN as well.
    #[test]
    fn rows_decode_as_the_formats_say() {
        fn check(ty: ElemType, k: usize, decode: impl Fn(&[u8], usize, &mut [f32])) {
            let tensor = Tensor::whole("w", ty, [k, 70, 2, 1], Role::Weights).with_margins([true, true, false, false]);
            let stream = Stream::new(1, 1);
            let bytes: Vec<u8> = (0..tensor.parent_bytes()).map(|i| stream.word(i as u64) as u8).collect();
            let view = View { tensor: &tensor, bytes: &bytes };
            let sizes = Sizes { k, m: 70, experts: 2, used: 1, b: 1, n: 1 };
            let panel = RowPanel::new(view, sizes, 1, 1, decode);
            let mut tile = [[0.0; TILE_ROWS]; TILE_K];
            let mut want = vec![0.0; k];
            for k0 in (0..k).step_by(TILE_K) {
                let depth = TILE_K.min(k - k0);
                panel.load(k0, depth, &mut tile);
                for row in 0..TILE_ROWS {
                    want.fill(0.0);
                    if row < 6 {
                        ty.decode(view.row([64 + row, 1, 0]), &mut want);
                    }
                    for (i, column) in tile.iter().enumerate() {
                        // Rounded once at most, so the nearest f32.
                        let (got, want) = (column[row], if i < depth { want[k0 + i] as f32 } else { 0.0 });
                        let same = got == want || got.is_nan() && want.is_nan();
                        assert!(same, "{ty} row {row} column {}: {got} for {want}", k0 + i);
                    }
                }
            }
        }
        check(ElemType::F32, 37, decode::f32);
        check(ElemType::F16, 37, decode::f16);
        check(ElemType::Bf16, 37, decode::bf16);
        check(ElemType::Q4_0, 64, decode::q4_0);
        check(ElemType::Q4_1, 64, decode::q4_1);
        check(ElemType::Q5_0, 64, decode::q5_0);
        check(ElemType::Q5_1, 64, decode::q5_1);
        check(ElemType::Q8_0, 64, decode::q8_0);
        check(ElemType::Q4K, 512, decode_k::q4_k);
        check(ElemType::Q6K, 512, decode_k::q6_k);
    }
}
