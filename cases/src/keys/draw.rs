//! Which shapes and recipes of keys are drawn.

use super::{KeyRows, Keys};
use crate::draw::Draw;
use crate::id::Margins;

/// Router widths, work-group and local-memory limits with their neighbours, vocabulary sizes.
const COLS: &[usize] = &[
    1, 2, 3, 4, 7, 8, 16, 31, 32, 33, 60, 64, 65, 127, 128, 129, 144, 160, 255, 256, 257, 288, 511, 512, 513, 1023,
    1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 8193, 16384, 16385, 32000, 32768, 32769, 65535, 65536,
    131071, 131072, 151936, 262143, 262144, 524288,
];
const ROWS: &[usize] = &[1, 2, 3, 5, 16, 17, 32, 33, 64, 65, 256];

/// No drawn case has more keys: sorting so many in one row costs what a drawn case may.
const MAX_KEYS: usize = 1 << 19;

impl KeyRows {
    /// Draws shape, view and recipe within the drawer's budget.
    pub(crate) fn draw(d: &mut Draw) -> Self {
        let budget = d.input_elements.min(d.operations).min(MAX_KEYS as u64) as usize;
        let cols = d.edge(COLS, 1, budget.max(64));
        let mut rows = [1; 3];
        let most = (budget / cols).clamp(1, 1000);
        rows[0] = d.edge(ROWS, 1, most);
        if d.one_in(3) {
            rows[1] = d.edge(&[2, 3, 5], 1, (most / rows[0]).max(1));
            rows[2] = d.edge(&[2, 3], 1, (most / rows[0] / rows[1]).max(1));
        }
        let mut view = Margins::default();
        if d.one_in(3) {
            view.0 = std::array::from_fn(|_| d.one_in(2));
        }
        KeyRows { cols, rows, view, keys: d.pick(Keys::ALL) }
    }
}
