//! A memory as one: attention, recurrent, or the one after the other.

use super::attention::Attention;
use super::io::{Counter, MemoryReader, StateError, StateWrite, Transfers};
use super::recurrent::Recurrent;
use super::shape::Shape;
use super::stages::Stages;

/// What is saved or loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Everything.
    All,
    /// One sequence: the one that is saved, or that is loaded into.
    Sequence(i32),
}

impl What {
    /// The sequence, if it is one.
    pub fn sequence(self) -> Option<i32> {
        match self {
            What::All => None,
            What::Sequence(s) => Some(s),
        }
    }

    /// Whether a sequence is meant.
    pub fn includes(self, sequence: i32) -> bool {
        self.sequence().is_none_or(|s| s == sequence)
    }
}

/// The memory of a model.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The attention part.
    pub attention: Option<Attention>,
    /// The recurrent part.
    pub recurrent: Option<Recurrent>,
    stages: Stages,
    is_valid: bool,
}

impl Memory {
    /// An empty memory.
    pub fn new(shape: &Shape, stages: Stages) -> Self {
        let attention = shape.kv.map(|shape| Attention::new(shape, 0));
        let first = attention.as_ref().map_or(0, |a| a.tensors.len());
        let recurrent = shape.recurrent.map(|shape| Recurrent::new(shape, first));
        Memory { attention, recurrent, stages, is_valid: true }
    }

    /// Bytes that [`save`](Self::save) will give.
    pub fn size(&self, what: What, partial: bool) -> usize {
        let mut counter = Counter::default();
        (self.stages.size)(self, what, partial, &mut counter);
        counter.bytes()
    }

    /// Saves into a buffer, whatever it held before. A partial state leaves the attention part of a hybrid out.
    pub fn save(
        &self,
        what: What,
        partial: bool,
        buffer: Vec<u8>,
        device: &mut dyn Transfers,
    ) -> Result<Vec<u8>, StateError> {
        self.check_valid()?;
        let size = self.size(what, partial);
        let mut writer = (self.stages.writer)(buffer);
        self.write(what, partial, &mut writer);
        if writer.bytes() != size {
            let written = writer.bytes();
            return Err(StateError::NotPossible(format!("{size} bytes were asked for, {written} were written")));
        }
        writer.finish(device)
    }

    /// Writes what [`save`](Self::save) would.
    pub fn write(&self, what: What, partial: bool, to: &mut dyn StateWrite) {
        if let Some(attention) = self.attention.as_ref().filter(|_| (self.stages.has_attention)(self, partial)) {
            attention.save(what, to, &self.stages);
        }
        if let Some(recurrent) = &self.recurrent {
            recurrent.save(what, to, &self.stages);
        }
    }

    /// Loads a blob, the whole of it. A blob that is refused changes nothing; where a transfer fails the memory is not
    /// valid until everything is loaded into it again.
    pub fn load(
        &mut self,
        what: What,
        partial: bool,
        blob: &[u8],
        device: &mut dyn Transfers,
    ) -> Result<(), StateError> {
        if what != What::All {
            self.check_valid()?;
        }
        let stages = self.stages;
        let mut reader = MemoryReader::new(blob);
        let attention = match self.attention.as_ref().filter(|_| self.has_attention(partial)) {
            Some(attention) => Some(attention.load(what, &mut reader, &stages)?),
            None => None,
        };
        let recurrent = match &self.recurrent {
            Some(recurrent) => Some(recurrent.load(what, &mut reader, &stages)?),
            None => None,
        };
        reader.end()?;
        if let Err(e) = (stages.finish)(reader, device) {
            self.is_valid = false;
            return Err(e);
        }
        if let (Some(memory), Some(pending)) = (&mut self.attention, attention) {
            memory.commit(pending);
        }
        if let (Some(memory), Some(pending)) = (&mut self.recurrent, recurrent) {
            memory.commit(pending);
        }
        self.is_valid = true;
        Ok(())
    }

    /// True if both have the same cells.
    pub fn holds_the_same(&self, other: &Self) -> bool {
        let streams = |m: &Self| m.attention.as_ref().map(|a| a.streams.clone());
        let states = |m: &Self| m.recurrent.as_ref().map(|r| r.cells.clone());
        streams(self) == streams(other) && states(self) == states(other) && self.is_valid == other.is_valid
    }

    /// First and last position of what is meant, and how many cells (of a memory without attention: states) hold them.
    pub fn positions(&self, what: What) -> ((i32, i32), usize) {
        let cells = self.attention.iter().flat_map(|a| &a.streams).flat_map(|s| &s.cells);
        let cells = cells.map(|c| (c.pos, &c.sequences));
        let states = self.recurrent.iter().filter(|_| self.attention.is_none()).flat_map(|r| &r.cells);
        let all = cells.chain(states.map(|c| (c.pos, &c.sequences)));
        let meant: Vec<i32> = all.filter(|(_, of)| of.iter().any(|s| what.includes(*s))).map(|(pos, _)| pos).collect();
        let ends = (meant.iter().min().copied().unwrap_or(-1), meant.iter().max().copied().unwrap_or(-1));
        (ends, meant.len())
    }

    /// A partial state has no attention part where there is another.
    pub(super) fn has_attention(&self, partial: bool) -> bool {
        !(partial && self.recurrent.is_some())
    }

    fn check_valid(&self) -> Result<(), StateError> {
        if self.is_valid {
            return Ok(());
        }
        let why = "a transfer into this memory failed half-way: load a whole state first";
        Err(StateError::NotPossible(why.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Part;
    use crate::state::attention::Cell;
    use crate::state::case_type;

    /// A device that fails, or counts.
    struct Device {
        fails: bool,
        moved: usize,
    }

    impl Transfers for Device {
        fn fetch(&mut self, _: &mut [u8], parts: &[Part]) -> Result<(), String> {
            self.moved += parts.len();
            if self.fails { Err("deviceRead: out of luck (-5)".to_owned()) } else { Ok(()) }
        }

        fn upload(&mut self, _: &[u8], parts: &[Part]) -> Result<(), String> {
            self.moved += parts.len();
            if self.fails { Err("deviceWrite: out of luck (-5)".to_owned()) } else { Ok(()) }
        }
    }

    fn memory() -> Memory {
        let shape = case_type::shape("hybrid_state", "c=8,l=1,k=32,v=32,rc=3,rl=1,r=4,rs=4").unwrap();
        let mut memory = Memory::new(&shape, Stages::default());
        let cells: Vec<Cell> = (0..3).map(|pos| Cell { pos, ..Cell::default() }).collect();
        memory.attention.as_mut().unwrap().append(1, &cells).unwrap();
        memory.recurrent.as_mut().unwrap().advance(1, 2).unwrap();
        memory
    }

    #[test]
    fn a_failed_transfer_leaves_a_memory_that_says_so() {
        let (mut good, mut bad) = (Device { fails: false, moved: 0 }, Device { fails: true, moved: 0 });
        let mut memory = memory();
        let all = memory.save(What::All, false, vec![], &mut good).unwrap();
        let one = memory.save(What::Sequence(1), false, vec![], &mut good).unwrap();
        assert!(memory.save(What::All, false, vec![], &mut bad).unwrap_err().to_string().contains("deviceRead"));
        // A save that failed has changed nothing.
        memory.load(What::Sequence(0), false, &one, &mut good).unwrap();
        let why = memory.load(What::Sequence(0), false, &one, &mut bad).unwrap_err();
        assert_eq!(why.to_string(), "transfer failed, the state is not valid any more: deviceWrite: out of luck (-5)");
        for answer in [
            memory.load(What::Sequence(0), false, &one, &mut good),
            memory.save(What::All, false, vec![], &mut good).map(|_| ()),
        ] {
            assert!(answer.unwrap_err().to_string().contains("load a whole state first"));
        }
        memory.load(What::All, false, &all, &mut good).unwrap();
        assert_eq!(memory.save(What::All, false, vec![], &mut good).unwrap(), all);
    }

    #[test]
    fn a_blob_that_is_refused_in_its_last_part_changes_nothing() {
        let mut device = Device { fails: false, moved: 0 };
        let memory = memory();
        let mut blob = memory.save(What::All, false, vec![], &mut device).unwrap();
        device.moved = 0;
        // The size of an S row, behind all of the attention part.
        let at = blob.len() - 16 - 8;
        blob[at] += 1;
        let mut target = Memory::new(
            &case_type::shape("hybrid_state", "c=8,l=1,k=32,v=32,rc=3,rl=1,r=4,rs=4").unwrap(),
            Stages::default(),
        );
        let before = target.clone();
        let why = target.load(What::All, false, &blob, &mut device).unwrap_err().to_string();
        assert_eq!(why, format!("layer 0 S row size at byte {at}: the blob has 17, this memory 16"));
        assert!(target.holds_the_same(&before) && device.moved == 0);
    }

    #[test]
    fn a_writer_that_is_dropped_has_moved_nothing() {
        let (memory, mut device) = (memory(), Device { fails: false, moved: 0 });
        let mut writer = crate::state::io::MemoryWriter::default();
        memory.write(What::All, false, &mut writer);
        assert_eq!(writer.bytes(), memory.size(What::All, false));
        drop(writer);
        assert_eq!(device.moved, 0);
        let partial = memory.save(What::All, true, vec![], &mut device).unwrap();
        assert!(partial.len() < memory.size(What::All, false));
    }
}
