//! What must hold of state that was saved and loaded, each as a check with a name.

use super::host::{Origin, Saved};
use super::lower::{After, EngineSave, Fault, Lowered};
use super::memory::{Memory, What};
use super::refuse::{check_damaged, check_mismatch, damages};
use super::shape::Shape;
use super::stages::Stages;
use super::tensor::CacheTensor;
use crate::inputs::Inputs;
use crate::judge::values::Expected;
use crate::judge::{Capabilities, Check, Failure, Findings, Oracle, RunBytes};
use crate::stream::Stream;

/// The checks, with the property that each one is.
pub const CHECKS: [(&str, &str); 10] = [
    ("size", "bytes asked for, written and read are the same"),
    ("refusal", "a damaged blob is refused, and changes nothing"),
    ("mismatch", "a blob of another memory is refused, one of an equal memory is not"),
    ("transfers", "neighbouring cells are one transfer"),
    ("blob", "a saved blob is that of the host, byte for byte"),
    ("queued", "a save waits for work that was queued before it"),
    ("roundtrip", "saved, overwritten with garbage, loaded and saved again is the same"),
    ("placement", "a load puts every row into its cell, wherever there is room"),
    ("source", "a load is done with its source when it says so"),
    ("outside", "what is not written to keeps its bytes"),
];

/// What memory that was freed holds.
const FREED: u8 = 0xa5;

/// Damaged blobs of each kind that a case tries.
const DAMAGES: usize = 6;

/// The right bytes of a case.
pub struct StateOracle {
    shape: Shape,
    cache: Vec<CacheTensor>,
    lowered: Lowered,
    faults: Vec<Fault>,
}

impl StateOracle {
    /// Looks at what the engine did.
    pub fn new(shape: &Shape, lowered: Lowered, seed: u64, stages: Stages) -> Self {
        let mut faults = lowered.faults.clone();
        if faults.is_empty() {
            faults.extend(refusals(shape, &lowered, seed, stages));
        }
        StateOracle { shape: *shape, cache: shape.tensors(), lowered, faults }
    }

    fn fault(&self, check: &str) -> Option<Failure> {
        self.faults.iter().find(|f| f.check == check).map(|f| Failure::new(f.what.clone()))
    }

    /// The check that a save belongs to.
    fn check_of(&self, save: usize) -> &'static str {
        match self.lowered.saves[save].after {
            After::Restored => "roundtrip",
            After::Queued => "queued",
            After::Anything => "blob",
        }
    }

    /// The first wrong save of a check, and whether there was one to look at.
    fn saves(&self, check: &str, run: &RunBytes<'_>) -> (Option<Failure>, bool) {
        let chosen = (0..self.lowered.saves.len()).filter(|s| self.check_of(*s) == check);
        let mut looked = false;
        for save in chosen {
            looked = true;
            let (engine, saved) = (&self.lowered.saves[save], &self.lowered.saved[save]);
            if let Some(failure) = self.compare(save, engine, saved, run) {
                return (Some(failure), true);
            }
        }
        (None, looked)
    }

    fn compare(&self, save: usize, engine: &EngineSave, saved: &Saved, run: &RunBytes<'_>) -> Option<Failure> {
        let mut got = engine.blob.clone();
        if let Some(buffer) = engine.buffer {
            let fetched = run.buffer(buffer);
            for part in &engine.parts {
                for (_, at) in part.pieces() {
                    got[at..at + part.size].copy_from_slice(&fetched[at..at + part.size]);
                }
            }
        }
        let want = saved.blob(&self.shape);
        let differs: Vec<usize> = (0..want.bytes.len()).filter(|i| got.get(*i) != Some(&want.bytes[*i])).collect();
        let at = *differs.first()?;
        let got_byte = got.get(at).map_or_else(|| "nothing".to_owned(), |b| format!("{b:#04x}"));
        let what =
            format!("save {save} (operation {}): {} of {} bytes are wrong", engine.op, differs.len(), want.bytes.len());
        let worst = format!("byte {at}, {}: expected {:#04x}, got {got_byte}", want.describe(at), want.bytes[at]);
        Some(Failure { worst: Some(worst), ..Failure::new(what) })
    }

    /// Rows of the memory in the end, each counted for the check that it belongs to.
    fn rows(&self, run: &RunBytes<'_>) -> [WrongRows; 3] {
        let [mut placement, mut source, mut outside] = [(); 3].map(|()| WrongRows::default());
        for t in &self.cache {
            let bytes = run.tensor(t.index);
            for (stream, cell, origin, want) in self.lowered.host.rows(t.index) {
                let part = t.part(stream, cell..cell + 1, 0, 0);
                let got: Vec<u8> =
                    part.pieces().flat_map(|(at, _)| bytes[at..at + part.size].iter().copied()).collect();
                let poison = run.poison.to_le_bytes();
                let want: Vec<u8> = match want {
                    Some(want) => want.to_vec(),
                    None => part.pieces().flat_map(|(at, _)| (at..at + part.size).map(|i| poison[i % 4])).collect(),
                };
                let rows = match origin {
                    Origin::Loaded if got != want && got.iter().all(|b| *b == FREED) => &mut source,
                    Origin::Loaded => &mut placement,
                    _ => &mut outside,
                };
                rows.count(&got, &want, || format!("{} stream {stream} cell {cell}", t.name));
            }
        }
        [placement, source, outside]
    }
}

/// Rows looked at, and those that are wrong.
#[derive(Default)]
struct WrongRows {
    seen: usize,
    wrong: usize,
    first: Option<String>,
}

impl WrongRows {
    fn count(&mut self, got: &[u8], want: &[u8], place: impl Fn() -> String) {
        self.seen += 1;
        let Some(at) = (0..want.len()).find(|i| got[*i] != want[*i]) else { return };
        self.wrong += 1;
        self.first.get_or_insert_with(|| {
            format!("{}, byte {at} of {}: expected {:#04x}, got {:#04x}", place(), want.len(), want[at], got[at])
        });
    }

    fn failure(&self, what: &str) -> Option<Failure> {
        let what = format!("{} of {} rows {what}", self.wrong, self.seen);
        (self.wrong > 0).then(|| Failure { worst: self.first.clone(), ..Failure::new(what) })
    }
}

impl Oracle for StateOracle {
    fn repeated(&self) -> Vec<usize> {
        Vec::new()
    }

    fn judge(&self, _: &Inputs<'_>, _: &Capabilities, run: &RunBytes<'_>) -> Findings {
        let [placement, source, outside] = self.rows(run);
        let check = |(name, _): &(&'static str, &str)| {
            let (found, looked) = match *name {
                "blob" | "queued" | "roundtrip" => self.saves(name, run),
                "placement" => (placement.failure("that were loaded are wrong"), placement.seen > 0),
                "source" => (source.failure("are what the source held after it was freed"), placement.seen > 0),
                "outside" => (outside.failure("that nothing was loaded into are wrong"), outside.seen > 0),
                _ => (None, true),
            };
            match self.fault(name).or(found) {
                None if !looked => Check::not_possible(name, "no operation of this case is of that kind"),
                failure => Check::from_failure(name, failure),
            }
        };
        Findings { checks: CHECKS.iter().map(check).collect(), metrics: None }
    }

    fn expected(&self, _: &Inputs<'_>, _: &Capabilities) -> Vec<Expected> {
        Vec::new()
    }
}

/// Loads of blobs that must be refused, and of some that must not.
fn refusals(shape: &Shape, lowered: &Lowered, seed: u64, stages: Stages) -> Vec<Fault> {
    let Some(saved) = lowered.saved.last() else { return Vec::new() };
    let blob = saved.blob(shape);
    let stream = Stream::new(seed, 0x4441_4d41);
    let mut memory = Memory::new(shape, stages);
    // A memory that holds something, so that a change can be seen.
    if memory.load(What::All, false, &blob.bytes, &mut Nowhere).is_err() {
        let what = "its own blob was refused by an empty memory".to_owned();
        return vec![Fault { check: "mismatch", what }];
    }
    let damaged = damages(&blob, DAMAGES, stream);
    let faults = [check_damaged(shape, &memory, &damaged), check_mismatch(shape, &blob.bytes, stages)];
    faults.into_iter().flatten().collect()
}

/// A device whose tensors nobody looks at.
struct Nowhere;

impl super::io::Transfers for Nowhere {
    fn fetch(&mut self, _: &mut [u8], _: &[crate::plan::Part]) -> Result<(), String> {
        Ok(())
    }

    fn upload(&mut self, _: &[u8], _: &[crate::plan::Part]) -> Result<(), String> {
        Ok(())
    }
}
