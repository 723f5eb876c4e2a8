//! The corpus of the fuzzers, replayed: inputs of every kind that a reader takes, and those that once broke one.

#[path = "../fuzz/targets.rs"]
mod targets;

use std::path::Path;

#[global_allocator]
static MEMORY: peak_alloc::PeakAlloc = peak_alloc::PeakAlloc;

/// One test, since what is in use is counted for all threads together.
#[test]
fn every_input_is_read_or_refused() {
    for (name, target) in
        [("state_blob", targets::state_blob as fn(&[u8])), ("case_id", targets::case_id), ("results", targets::results)]
    {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/fuzz").join(name);
        let mut count = 0;
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            targets::bounded(&MEMORY, &std::fs::read(&path).unwrap(), target);
            count += 1;
        }
        assert!(count >= 20, "{}: only {count} inputs", dir.display());
    }
    let greedy = || targets::bounded(&MEMORY, b"abc", |_| drop(std::hint::black_box(vec![1u8; 3 << 20])));
    assert!(std::panic::catch_unwind(greedy).is_err(), "three megabytes for three bytes are noticed");
}
