//! Faults of a top-k.

use conform_cases::formats::read_f32;
use conform_cases::inputs::Inputs;
use conform_cases::judge::POISONS;

use super::bench::Bench;

/// Row 2 of a top-k with four different keys, 64 columns and k = 32.
#[test]
fn faults_of_a_top_k_are_seen() {
    let bench = || Bench::id("top_k/c=64,r=5,k=32/data=ties/v1-1");
    let failed = |change: &dyn Fn(&mut [u32], &[u32])| {
        let mut bench = bench();
        let keys = Inputs::new(&bench.plan, &bench.layout, &bench.inputs).tensor(0).1;
        let keys: Vec<f32> = read_f32(&keys[2 * 256..3 * 256]).collect();
        let mut ascending: Vec<u32> = (0..64).collect();
        ascending.sort_by(|a, b| keys[*a as usize].total_cmp(&keys[*b as usize]));
        bench.edit(|w| change(&mut w[64..96], &ascending));
        bench.failed()
    };
    // Any order of the right answer is right.
    assert_eq!(failed(&|row, _| row.reverse()), Vec::<String>::new());
    // The smallest key in place of the largest; places beyond 16 that nobody filled; the k best by index alone.
    assert_eq!(failed(&|row, ascending| row[31] = ascending[0]), ["best"]);
    assert_eq!(failed(&|row, _| row[16..].fill(0)), ["distinct"]);
    assert_eq!(failed(&|row, _| (0..32).for_each(|i| row[i as usize] = i)), ["best"]);
    assert_eq!(failed(&|row, _| row[7] = 64), ["distinct"]);
    let mut unwritten = bench();
    unwritten.edit(|w| w[70] = POISONS[0]);
    assert_eq!(unwritten.failed(), ["written"]);
}

/// A copy of the k-th key in place of a larger one: no key is below the k-th, and one is missing all the same.
#[test]
fn a_displaced_key_is_seen() {
    let mut bench = Bench::id("top_k/c=64,k=32/data=ties/v1-1");
    let keys = Inputs::new(&bench.plan, &bench.layout, &bench.inputs).tensor(0).1;
    let keys: Vec<f32> = read_f32(keys).collect();
    bench.edit(|row| {
        let kth = keys[row[0] as usize];
        let spare = (0..64).find(|i| keys[*i as usize] == kth && !row.contains(i)).unwrap();
        assert!(keys[row[31] as usize] > kth);
        row[31] = spare;
    });
    assert_eq!(bench.failed(), ["best"]);
}
