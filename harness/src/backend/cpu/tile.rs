//! Weight tiles: 64 rows of 16 values in f32, from any weight type.
//!
//! A panel is the 64 rows of one expert that a task works on. Its loader hands
//! out tiles `[k][row]`, with zeros in rows beyond the expert (m need not be a
//! multiple of 64) and in columns beyond k (nor k of 16). An element is one f32:
//! code times scale, exact for every finite result, infinite where mxfp4 leaves
//! the range of f32. Nothing passes through f16, where large scales overflow.

use conform_cases::formats::{ElemType, read_f32};
use half::f16;
use half::slice::HalfFloatSliceExt;

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

/// Decodes part of a stored row.
pub(super) trait Stored {
    /// Decodes values from `k0` on, at most [`TILE_K`] of them; `k0` is a multiple of that.
    fn decode(row: &[u8], k0: usize, out: &mut [f32]);
}

/// f32 rows.
pub(super) struct F32;
/// f16 rows.
pub(super) struct F16;
/// q4_0 rows.
pub(super) struct Q4_0;
/// q8_0 rows.
pub(super) struct Q8_0;

impl Stored for F32 {
    #[inline(always)]
    fn decode(row: &[u8], k0: usize, out: &mut [f32]) {
        for (o, value) in out.iter_mut().zip(read_f32(&row[4 * k0..])) {
            *o = value;
        }
    }
}

impl Stored for F16 {
    #[inline(always)]
    fn decode(row: &[u8], k0: usize, out: &mut [f32]) {
        let mut values = [f16::ZERO; TILE_K];
        for (value, bytes) in values.iter_mut().zip(&row.as_chunks::<2>().0[k0..][..out.len()]) {
            *value = f16::from_le_bytes(*bytes);
        }
        values[..out.len()].convert_to_f32_slice(out);
    }
}

/// The f16 scale at the start of a block.
#[inline(always)]
fn f16_scale(block: &[u8]) -> f32 {
    f16::from_le_bytes([block[0], block[1]]).to_f32()
}

impl Stored for Q4_0 {
    #[inline(always)]
    fn decode(row: &[u8], k0: usize, out: &mut [f32]) {
        let block = &row[k0 / 32 * ElemType::Q4_0.block_bytes()..];
        let scale = f16_scale(block);
        // Low nibbles are the first half of a block, high nibbles the second.
        let shift = k0 % 32 / 16 * 4;
        for (o, byte) in out.iter_mut().zip(&block[2..18]) {
            *o = scale * ((i32::from(byte >> shift) & 15) - 8) as f32;
        }
    }
}

impl Stored for Q8_0 {
    #[inline(always)]
    fn decode(row: &[u8], k0: usize, out: &mut [f32]) {
        let block = &row[k0 / 32 * ElemType::Q8_0.block_bytes()..];
        let scale = f16_scale(block);
        for (o, code) in out.iter_mut().zip(&block[2 + k0 % 32..]) {
            *o = scale * f32::from(*code as i8);
        }
    }
}

/// A panel of weights where they were written.
pub(super) struct RowPanel<'a, S> {
    /// Rows that do not exist are empty.
    rows: [&'a [u8]; TILE_ROWS],
    stored: std::marker::PhantomData<S>,
}

impl<'a, S> RowPanel<'a, S> {
    pub(super) fn new(weights: View<'a>, sizes: Sizes, expert: usize, panel: usize) -> Self {
        let mut rows: [&[u8]; TILE_ROWS] = [&[]; TILE_ROWS];
        for (row, bytes) in (panel * TILE_ROWS..sizes.m).zip(&mut rows) {
            *bytes = weights.row([row, expert, 0]);
        }
        RowPanel { rows, stored: std::marker::PhantomData }
    }
}

impl<S: Stored> Panel for RowPanel<'_, S> {
    #[inline(always)]
    fn load(&self, k0: usize, depth: usize, tile: &mut WeightTile) {
        for (row, bytes) in self.rows.iter().enumerate().take_while(|(_, bytes)| !bytes.is_empty()) {
            let mut values = [0.0; TILE_K];
            S::decode(bytes, k0, &mut values[..depth]);
            for (column, value) in tile.iter_mut().zip(values) {
                column[row] = value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::formats::{E2M1, mxfp4_scale};
    use conform_cases::plan::{Role, Tensor};

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

    #[test]
    fn rows_decode_as_the_formats_say() {
        fn check<S: Stored>(ty: ElemType, k: usize) {
            let tensor = Tensor::whole("w", ty, [k, 70, 2, 1], Role::Weights).with_margins([true, true, false, false]);
            // Finite in every type: the high byte of each f16 and f32 stays small.
            let bytes: Vec<u8> = (0..tensor.parent_bytes()).map(|i| (i * 89 % 64) as u8).collect();
            let view = View { tensor: &tensor, bytes: &bytes };
            let sizes = Sizes { k, m: 70, experts: 2, used: 1, b: 1, n: 1 };
            let panel = RowPanel::<S>::new(view, sizes, 1, 1);
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
                        let value = if i < depth { want[k0 + i] } else { 0.0 };
                        assert_eq!(f64::from(column[row]), value, "{ty} row {row} column {}", k0 + i);
                    }
                }
            }
        }
        check::<F32>(ElemType::F32, 37);
        check::<F16>(ElemType::F16, 37);
        check::<Q4_0>(ElemType::Q4_0, 64);
        check::<Q8_0>(ElemType::Q8_0, 64);
    }
}
