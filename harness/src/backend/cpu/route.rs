//! Stages histogram, scan, fill and scatter: slots sorted by expert.
//!
//! Ids are `[used, n]`; slot `token * used + i` goes to expert `ids[i, token]`.
//! Each expert gets whole tiles of 32 sorted slots, and what is left of its
//! last tile is padding. A slot whose id names no expert gets no place.
//! Guards against: counters left over from an earlier call or never cleared,
//! an expert without slots, the same expert twice in a token (two places), and
//! slot numbers kept in 16 bits. The order inside an expert means nothing.

use super::arguments::{Ids, PADDING, TILE_SLOTS};

/// Counts the slots of each expert.
pub(super) fn histogram(ids: Ids<'_>, counters: &mut [u32]) {
    counters.fill(0);
    for (_, expert) in ids.routed() {
        counters[expert] += 1;
    }
}

/// Running sum of each expert's tiles; the last entry is their total. Clears the counters for [`scatter`].
pub(super) fn scan(counters: &mut [u32], tile_offset: &mut [u32]) {
    let mut tiles = 0;
    for (count, offset) in counters.iter_mut().zip(&mut *tile_offset) {
        *offset = tiles;
        tiles += count.div_ceil(TILE_SLOTS as u32);
        *count = 0;
    }
    tile_offset[counters.len()] = tiles;
}

/// Makes every slot of the used tiles padding.
pub(super) fn fill(slots: &mut [u32]) {
    slots.fill(PADDING);
}

/// Gives each slot the next place in its expert's tiles, and each tile its expert.
pub(super) fn scatter(
    ids: Ids<'_>,
    tile_offset: &[u32],
    counters: &mut [u32],
    slots: &mut [u32],
    tile_expert: &mut [u32],
) {
    for (slot, expert) in ids.routed() {
        let taken = counters[expert] as usize;
        counters[expert] += 1;
        let place = tile_offset[expert] as usize * TILE_SLOTS + taken;
        slots[place] = slot as u32;
        tile_expert[place / TILE_SLOTS] = expert as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::super::arguments::{Sizes, View};
    use super::*;
    use conform_cases::formats::ElemType;
    use conform_cases::plan::{Role, Tensor};

    /// Routes ids drawn by `id(slot)` and checks everything a matmul relies on.
    fn check(experts: usize, used: usize, n: usize, poison: u32, id: impl Fn(usize) -> i32) {
        let sizes = Sizes { k: 1, m: 1, experts, used, b: 1, n };
        let tensor =
            Tensor::whole("ids", ElemType::I32, [used, n, 1, 1], Role::Input).with_margins([true, true, false, false]);
        let mut bytes = vec![1; tensor.parent_bytes()];
        for token in 0..n {
            let row: Vec<u8> = (0..used).flat_map(|i| id(token * used + i).to_le_bytes()).collect();
            bytes[tensor.row_range([token, 0, 0])].copy_from_slice(&row);
        }
        let ids = Ids { view: View { tensor: &tensor, bytes: &bytes }, sizes };

        let (mut counters, mut tile_offset) = (vec![poison; experts], vec![poison; experts + 1]);
        histogram(ids, &mut counters);
        scan(&mut counters, &mut tile_offset);
        assert!(counters.iter().all(|c| *c == 0));
        let tiles = tile_offset[experts] as usize;
        assert!(tiles <= used * n / TILE_SLOTS + experts && tiles <= sizes.max_tiles());
        let (mut slots, mut tile_expert) = (vec![poison; tiles * TILE_SLOTS], vec![poison; tiles]);
        fill(&mut slots);
        scatter(ids, &tile_offset, &mut counters, &mut slots, &mut tile_expert);

        let mut seen = vec![0; used * n];
        for (place, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            seen[*slot as usize] += 1;
            assert_eq!(id(*slot as usize), tile_expert[place / TILE_SLOTS] as i32);
        }
        for (slot, times) in seen.iter().enumerate() {
            assert_eq!(*times, i32::from((0..experts as i32).contains(&id(slot))), "slot {slot}");
        }
    }

    #[test]
    fn every_slot_appears_once_in_a_tile_of_its_expert() {
        for poison in [0, 1, u32::MAX] {
            check(1, 1, 1, poison, |_| 0);
            check(8, 4, 33, poison, |slot| (slot * 7 % 8) as i32);
            // More slots a token than a work-group of 64 lanes a slot could hold, and experts without slots.
            check(40, 17, 9, poison, |slot| (slot * slot % 20) as i32);
        }
    }

    #[test]
    fn skew_repeats_and_ids_out_of_range() {
        check(160, 6, 64, u32::MAX, |_| 159);
        check(4, 4, 31, u32::MAX, |slot| (slot / 2 % 4) as i32);
        check(3, 2, 40, u32::MAX, |slot| [0, -1, 2, 3, i32::MAX, i32::MIN][slot % 6]);
        check(3, 2, 40, u32::MAX, |_| -1);
    }

    #[test]
    fn more_slots_than_sixteen_bits_count() {
        check(5, 8, 9000, u32::MAX, |slot| (slot % 5) as i32);
    }
}
