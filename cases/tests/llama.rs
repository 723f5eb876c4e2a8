//! The judge of `llama_state` on a library of our own: it passes as it is, and each check fails where something is wrong.
//!
//! The library's logits are made of the rows that the cells of a sequence have, so that they are right if and only if
//! cells and rows are.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use conform_cases::judge::{Capabilities, Check, Status};
use conform_cases::llama::calls::{ABSENT, Call, GUARD, Piece, write_record};
use conform_cases::llama::judge::{CHECKS, LlamaOracle};
use conform_cases::llama::script::{CELLS, SEQUENCES, Scenario, Script};
use conform_cases::llama::weights::{Arch, Cache, VOCABULARY, Variant};
use conform_cases::model::Kernels;
use conform_cases::state::attention::Cell;
use conform_cases::state::container::{Container, Kind};
use conform_cases::state::memory::{Memory, What};
use conform_cases::state::mutants::MUTANTS;
use conform_cases::state::plain::PlainMemory;
use conform_cases::state::shape::Shape;
use conform_cases::state::stages::Stages;
use conform_cases::stream::Stream;

/// A context of the library.
struct Context {
    memory: Memory,
    device: PlainMemory,
}

/// A library, and what is wrong with it.
struct Library {
    stages: Stages,
    contexts: BTreeMap<usize, Context>,
    blobs: BTreeMap<usize, Vec<u8>>,
}

impl Library {
    fn new(stages: Stages) -> Self {
        Library { stages, contexts: BTreeMap::new(), blobs: BTreeMap::new() }
    }

    fn call(&mut self, call: &Call) -> (i64, Vec<u8>) {
        let context = match call {
            Call::Open { context, .. }
            | Call::Decode { context, .. }
            | Call::Remove { context, .. }
            | Call::Copy { context, .. }
            | Call::Size { context, .. }
            | Call::Save { context, .. }
            | Call::Load { context, .. } => *context,
        };
        if let Call::Open { .. } = call {
            let caches = Variant::of(Arch::Llama).caches(1, CELLS, SEQUENCES, false);
            let [Cache::Kv(kv)] = caches[..] else { unreachable!() };
            let shape = Shape { kv: Some(kv), recurrent: None };
            let device = PlainMemory::new(&shape.tensors());
            self.contexts.insert(context, Context { memory: Memory::new(&shape, self.stages), device });
            return (1, vec![]);
        }
        let Context { memory, device } = self.contexts.get_mut(&context).unwrap();
        match call {
            Call::Open { .. } => unreachable!(),
            Call::Decode { sequence, position, tokens, .. } => {
                let attention = memory.attention.as_mut().unwrap();
                let cells: Vec<Cell> =
                    (*position..).take(tokens.len()).map(|pos| Cell { pos, ..Cell::default() }).collect();
                let (_, places) = attention.append(*sequence, &cells).unwrap();
                let row = attention.tensors[0].row_bytes();
                for (place, token) in places.iter().zip(tokens) {
                    device.tensors[0][place * row..][..4].copy_from_slice(&token.to_le_bytes());
                }
                (0, logits(memory, device, *sequence))
            }
            Call::Remove { sequence, from, to, .. } => {
                let to = if *to < 0 { i32::MAX } else { *to };
                memory.attention.as_mut().unwrap().remove(*sequence, *from, to);
                (1, vec![])
            }
            Call::Copy { from, to, .. } => {
                memory.attention.as_mut().unwrap().copy(*from, *to).unwrap();
                (1, vec![])
            }
            Call::Size { what, .. } => {
                let (head, what) = parts(*what);
                ((head.len() + memory.size(what, false)) as i64, vec![])
            }
            Call::Save { what, blob, .. } => {
                let (head, what) = parts(*what);
                let saved = [head, memory.save(what, false, vec![], device).unwrap()].concat();
                self.blobs.insert(*blob, saved.clone());
                (saved.len() as i64, [&saved[..], &GUARD].concat())
            }
            Call::Load { what, blob, damage, .. } => {
                let blob = damage.map_or(self.blobs[blob].clone(), |d| d.of(&self.blobs[blob]));
                let kind = if *what == Piece::Whole { Kind::Whole } else { Kind::Sequence };
                let Ok((_, start)) = Container::read(kind, &blob) else { return (0, vec![]) };
                let loaded = memory.load(parts(*what).1, false, &blob[start..], device);
                (loaded.map_or(0, |()| blob.len() as i64), vec![])
            }
        }
    }

    /// The log of a script.
    fn log(mut self, script: &Script, change: impl Fn(usize, &mut i64, &mut Vec<u8>)) -> Vec<u8> {
        let (mut log, mut end) = (vec![0; 1 << 20], 0);
        for (i, call) in script.calls.iter().enumerate() {
            let (mut value, mut bytes) = self.call(call);
            change(i, &mut value, &mut bytes);
            write_record(&mut log, &mut end, value, &bytes).unwrap();
        }
        log.truncate(end);
        log
    }
}

/// What stands before the memory's part, and what that is of.
fn parts(piece: Piece) -> (Vec<u8>, What) {
    match piece {
        Piece::Whole => (Container::Whole { architecture: "llama".to_owned() }.head(), What::All),
        Piece::Sequence(sequence) | Piece::Partial(sequence) => {
            (Container::Sequence { sequence }.head(), What::Sequence(sequence))
        }
    }
}

/// Numbers that the tokens of a sequence and their positions decide.
fn logits(memory: &Memory, device: &PlainMemory, sequence: i32) -> Vec<u8> {
    let attention = memory.attention.as_ref().unwrap();
    let row = attention.tensors[0].row_bytes();
    let cells = attention.streams[0].cells.iter().enumerate().filter(|(_, c)| c.sequences.contains(&sequence));
    let mut seen: Vec<(i32, &[u8])> = cells.map(|(i, c)| (c.pos, &device.tensors[0][i * row..][..row])).collect();
    seen.sort_unstable();
    let mut stream = Stream::new(7, 7);
    for (pos, row) in seen {
        stream = row.iter().fold(stream.at(pos as u64), |s, b| s.at(u64::from(*b)));
    }
    (0..VOCABULARY as u64).flat_map(|i| (stream.below(i, 1000) as f32 - 500.0).to_le_bytes()).collect()
}

const CPU: Capabilities = Capabilities { kernels: Kernels::GgmlCpuAvx, ..Capabilities::OWN };

/// The checks of a scenario on a library with these stages, whose records are changed.
fn checks(scenario: Scenario, stages: Stages, change: impl Fn(&Script, usize, &mut i64, &mut Vec<u8>)) -> Vec<Check> {
    let script = Script::new(Variant::of(Arch::Llama), scenario, 3);
    let log = Library::new(stages).log(&script, |i, value, bytes| change(&script, i, value, bytes));
    LlamaOracle::new(Variant::of(Arch::Llama), script, 0).checks(&log, &CPU)
}

fn failed(checks: &[Check]) -> Vec<&str> {
    checks.iter().filter(|c| c.failure().is_some()).map(|c| &*c.name).collect()
}

#[test]
fn a_right_library_passes() {
    let mut passed = std::collections::BTreeSet::new();
    for seed in 0..20 {
        for scenario in Scenario::ALL {
            let script = Script::new(Variant::of(Arch::Llama), *scenario, seed);
            let log = Library::new(Stages::default()).log(&script, |_, _, _| {});
            let checks = LlamaOracle::new(Variant::of(Arch::Llama), script, 0).checks(&log, &CPU);
            assert!(failed(&checks).is_empty(), "{scenario} {seed}: {checks:#?}");
            passed.extend(checks.into_iter().filter(|c| c.status == Status::Passed).map(|c| c.name));
        }
    }
    assert_eq!(passed.len(), CHECKS.len(), "{passed:?}");
}

#[test]
fn wrong_records_fail() {
    type Change = fn(&Script, usize, &mut i64, &mut Vec<u8>);
    let faults: [(Scenario, &[&str], Change); 14] = [
        // A size that is asked for in vain.
        (Scenario::Fresh, &["size"], |s, i, value, _| {
            *value += i64::from(matches!(s.calls[i], Call::Size { .. }));
        }),
        // A save that writes beyond its end.
        (Scenario::Holes, &["size"], |s, i, _, bytes| {
            if matches!(s.calls[i], Call::Save { .. }) {
                *bytes.last_mut().unwrap() = 0;
            }
        }),
        // A blob with a number that nothing says.
        (Scenario::Fresh, &["blob"], |s, i, _, bytes| {
            if matches!(s.calls[i], Call::Save { what: Piece::Whole, .. }) {
                bytes[9] = 200;
            }
        }),
        // The same where several are saved together, and where a part is.
        (Scenario::Many, &["blob"], |s, i, _, bytes| {
            if matches!(s.calls[i], Call::Save { what: Piece::Whole, .. }) {
                bytes[9] = 200;
            }
        }),
        (Scenario::Partial, &["blob"], |s, i, _, bytes| {
            if matches!(s.calls[i], Call::Save { .. }) {
                bytes[12] = 200;
            }
        }),
        // A blob of another architecture.
        (Scenario::Dirty, &["blob"], |s, i, _, bytes| {
            if matches!(s.calls[i], Call::Save { what: Piece::Whole, .. }) {
                bytes[4] = b'g';
            }
        }),
        // Damage that nobody sees.
        (Scenario::Damaged, &["refusal"], |s, i, value, _| {
            if matches!(s.calls[i], Call::Load { .. }) {
                *value = 77;
            }
        }),
        // A refusal that changes what comes after.
        (Scenario::Damaged, &["intact"], |s, i, _, bytes| {
            if i > 0 && matches!(s.calls[i - 1], Call::Load { .. }) {
                bytes[3] ^= 0x40;
            }
        }),
        // A sequence that others disturb.
        (Scenario::Holes, &["beside"], |s, i, _, bytes| {
            if matches!(s.calls[i], Call::Decode { context: 2, sequence: 1, .. }) {
                bytes[3] ^= 0x40;
            }
        }),
        // A copy that goes on as something else.
        (Scenario::Copied, &["copy"], |s, i, _, bytes| {
            if matches!(s.calls[i], Call::Decode { context: 0, sequence: 1, .. }) {
                bytes[3] ^= 0x40;
            }
        }),
        // A copy that was put off, and saved before it was made.
        (Scenario::Copied, &["queued"], |s, i, _, bytes| {
            if matches!(s.calls[i], Call::Decode { context: 1, sequence: 1, .. }) {
                bytes[3] ^= 0x40;
            }
        }),
        // Logits that differ in a bit.
        (Scenario::Fresh, &["logits"], |s, i, _, bytes| {
            if i > 0 && matches!(s.calls[i - 1], Call::Load { .. }) {
                bytes[0] ^= 1;
            }
        }),
        // A decoding that fails.
        (Scenario::Partial, &["partial"], |s, i, value, _| {
            if matches!(s.calls[i], Call::Decode { .. }) && i + 1 == s.calls.len() {
                *value = -1;
            }
        }),
        // Logits that are the same whatever comes before.
        (Scenario::Fresh, &["logits"], |s, i, _, bytes| {
            if matches!(s.calls[i], Call::Decode { .. }) {
                *bytes = vec![0x3f; bytes.len()];
            }
        }),
    ];
    for (n, (scenario, wanted, change)) in faults.into_iter().enumerate() {
        assert_eq!(failed(&checks(scenario, Stages::default(), change)), wanted, "fault {n}");
    }
}

/// Wrong engines behind the same calls.
#[test]
fn wrong_engines_fail() {
    for (mutant, scenario, wanted) in
        [("state-restore-clears-all", Scenario::Holes, "others"), ("state-window-lost", Scenario::Fresh, "logits")]
    {
        let mut stages = Stages::default();
        (MUTANTS.iter().find(|m| m.id == mutant).unwrap().change)(&mut stages);
        let failed_by = checks(scenario, stages, |_, _, _, _| {});
        assert!(failed(&failed_by).contains(&wanted), "{mutant}: {failed_by:?}");
    }
}

#[test]
fn what_a_build_cannot_do_is_said() {
    let checks = checks(Scenario::Partial, Stages::default(), |s, i, value, bytes| {
        let is_partial = |what: &Piece| matches!(what, Piece::Partial(_));
        if let Call::Save { what, .. } | Call::Load { what, .. } | Call::Size { what, .. } = &s.calls[i]
            && is_partial(what)
        {
            (*value, *bytes) = (ABSENT, vec![]);
        }
    });
    for name in ["size", "partial"] {
        let check = checks.iter().find(|c| c.name == name).unwrap();
        let Status::NotPossible { why } = &check.status else { panic!("{check:?}") };
        assert_eq!(why, "this libllama has no function for it");
    }
}

#[test]
fn a_log_that_ends_early_fails_everything() {
    let script = Script::new(Variant::of(Arch::Llama), Scenario::Fresh, 3);
    let log = Library::new(Stages::default()).log(&script, |_, _, _| {});
    let checks = LlamaOracle::new(Variant::of(Arch::Llama), script, 0).checks(&log[..log.len() - 1], &CPU);
    assert_eq!(failed(&checks).len(), CHECKS.len());
}
