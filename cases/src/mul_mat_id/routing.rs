//! Which experts a token chooses, and what the choice means for tiles of 32 slots.

use super::{MulMatId, Route};
use crate::stream::{Stream, unit};

const ROUTING: u64 = 0x72;
/// Slots per tile in the description that `conform show` prints.
const TILE: usize = 32;

/// Writes the ids of one token, in the order of its slots.
pub(super) fn fill_ids(case: &MulMatId, seed: u64, token: usize, row: &mut [u8]) {
    let ids = token_ids(case, seed, token);
    for (slot, id) in row.chunks_exact_mut(4).zip(ids) {
        slot.copy_from_slice(&id.to_le_bytes());
    }
}

/// Valid experts for ids outside the view.
pub(super) fn fill_decoys(case: &MulMatId, seed: u64, bytes: &mut [u8]) {
    let stream = Stream::new(seed, ROUTING).at(u64::MAX);
    for (i, id) in bytes.chunks_exact_mut(4).enumerate() {
        id.copy_from_slice(&(stream.below(i as u64, case.experts as u64) as i32).to_le_bytes());
    }
}

fn token_ids(case: &MulMatId, seed: u64, token: usize) -> Vec<i32> {
    let shared = Stream::new(seed, ROUTING);
    let own = shared.at(token as u64);
    let (e, u) = (case.experts, case.used);
    let favourite = shared.below(0, e as u64) as i32;
    match case.route {
        Route::Shuffle => distinct(own, e, u, |_| 1.0),
        // Expert popularity falls with its rank in a per-case order.
        Route::Skew => distinct(own, e, u, |x| 1.0 / (1.0 + shared.below(1 + x as u64, e as u64) as f64)),
        Route::Fixed => distinct(shared, e, u, |_| 1.0),
        Route::Empty => {
            let open = u.max(e / 2);
            let subset = distinct(shared, e, open, |_| 1.0);
            distinct(own, open, u, |_| 1.0).into_iter().map(|i| subset[i as usize]).collect()
        }
        Route::Last => {
            let mut ids = distinct(own, e, u, |_| 1.0);
            let last = e as i32 - 1;
            match ids.iter().position(|id| *id == last) {
                Some(at) => ids.swap(0, at),
                None => ids[0] = last,
            }
            ids
        }
        Route::Repeat => {
            let mut ids: Vec<i32> = (0..u).map(|i| own.below(i as u64, e as u64) as i32).collect();
            let (from, to) = (own.below(u as u64, u as u64) as usize, own.below(u as u64 + 1, u as u64 - 1) as usize);
            ids[(from + 1 + to) % u] = ids[from];
            ids
        }
        Route::One => vec![favourite; u],
        Route::Out => {
            let outside = [-1, e as i32, e as i32 + 7, i32::MIN, i32::MAX, -(e as i32)];
            let mut ids = distinct(own, e, u, |_| 1.0);
            for (i, id) in ids.iter_mut().enumerate() {
                if own.at(1).one_in(i as u64, 4) {
                    *id = outside[own.at(2).below(i as u64, outside.len() as u64) as usize];
                }
            }
            ids
        }
    }
}

/// `count` distinct experts of `experts`, in random order, an expert's chance growing with its weight:
/// each expert draws a score and the highest scores win.
fn distinct(stream: Stream, experts: usize, count: usize, weight: impl Fn(usize) -> f64) -> Vec<i32> {
    let mut scored: Vec<(f64, i32)> =
        (0..experts).map(|x| (unit(stream.word(x as u64)) * weight(x), x as i32)).collect();
    let by_score = |a: &(f64, i32), b: &(f64, i32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if count < experts {
        scored.select_nth_unstable_by(count, by_score);
        scored.truncate(count);
    }
    scored.sort_unstable_by(by_score);
    scored.into_iter().map(|(_, x)| x).collect()
}

/// Lines about slots per expert and the tiles they fill.
pub(super) fn describe(experts: usize, ids: impl Iterator<Item = i32>) -> Vec<String> {
    let mut counts = vec![0usize; experts];
    let (mut slots, mut outside) = (0usize, 0usize);
    for id in ids {
        slots += 1;
        match usize::try_from(id).ok().and_then(|x| counts.get_mut(x)) {
            Some(count) => *count += 1,
            None => outside += 1,
        }
    }
    let empty = counts.iter().filter(|c| **c == 0).count();
    let mut lines = vec![format!(
        "routing   {slots} slots, {empty} of {experts} experts without a slot, {outside} ids out of range"
    )];
    let mut first_tile = 0;
    let mut map = Vec::new();
    for (expert, count) in counts.iter().enumerate().filter(|(_, c)| **c > 0) {
        let tiles = count.div_ceil(TILE);
        let padding = tiles * TILE - count;
        map.push(format!(
            "  expert {expert:<5} {count:>6} slots   tiles {first_tile}..{}   {padding} padding",
            first_tile + tiles
        ));
        first_tile += tiles;
    }
    lines.push(format!("tiles     {first_tile} of {TILE} slots"));
    const SHOWN: usize = 24;
    let more = map.len().saturating_sub(SHOWN);
    lines.extend(map.into_iter().take(SHOWN));
    if more > 0 {
        lines.push(format!("  … {more} more experts"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Case;
    use crate::formats::read_i32;

    fn ids(route: &str, e: usize, u: usize, n: usize) -> Vec<Vec<i32>> {
        let case: Case =
            format!("mul_mat_id/w=f32,x=f32,e={e},u={u},m=1,n={n},k=1/route={route},data=wide/v1-3").parse().unwrap();
        (0..n)
            .map(|t| {
                let mut row = vec![0; 4 * u];
                case.body().fill_row(3, super::super::IDS, [t, 0, 0], &mut row);
                read_i32(&row).collect()
            })
            .collect()
    }

    fn is_distinct(row: &[i32]) -> bool {
        let mut sorted = row.to_vec();
        sorted.sort_unstable();
        sorted.windows(2).all(|w| w[0] != w[1])
    }

    #[test]
    fn ordinary_routes_are_distinct_and_in_range() {
        for route in ["shuffle", "skew", "fixed", "empty", "last"] {
            for row in ids(route, 12, 5, 40) {
                assert!(is_distinct(&row) && row.iter().all(|id| (0..12).contains(id)), "{route}: {row:?}");
            }
        }
        assert!(is_distinct(&ids("shuffle", 512, 512, 1)[0]));
    }

    #[test]
    fn each_route_does_what_its_name_says() {
        let used = |rows: &[Vec<i32>]| rows.iter().flatten().collect::<std::collections::BTreeSet<_>>().len();
        assert_eq!(used(&ids("fixed", 16, 3, 50)), 3);
        assert_eq!(used(&ids("empty", 16, 3, 200)), 8);
        assert_eq!(used(&ids("one", 16, 3, 50)), 1);
        assert!(ids("last", 16, 3, 50).iter().all(|r| r.contains(&15)));
        assert!(ids("repeat", 16, 3, 50).iter().all(|r| !is_distinct(r) && r.iter().all(|id| (0..16).contains(id))));
        assert!(ids("repeat", 16, 2, 50).iter().all(|r| r[0] == r[1]));
        let out: Vec<i32> = ids("out", 16, 4, 200).concat();
        let outside = out.iter().filter(|id| !(0..16).contains(*id)).count();
        assert!((100..300).contains(&outside));
        assert!(out.contains(&-1) && out.contains(&16) && out.contains(&i32::MIN));
        let skew = ids("skew", 16, 1, 400).concat();
        let most = (0..16).map(|x| skew.iter().filter(|id| **id == x).count()).max().unwrap();
        assert!(most > 80, "{most}");
    }

    #[test]
    fn description_counts_tiles() {
        let ids = std::iter::repeat_n(2, 33).chain([0, -1]);
        let lines = describe(4, ids);
        assert_eq!(lines[0], "routing   35 slots, 2 of 4 experts without a slot, 1 ids out of range");
        assert_eq!(lines[1], "tiles     3 of 32 slots");
        assert!(lines[3].contains("expert 2") && lines[3].contains("tiles 1..3   31 padding"), "{}", lines[3]);
    }
}
