//! The oracle of state: a cache that keeps the bytes of each row, and moves nothing.
//!
//! It is written from the description of the formats and of what the operations
//! mean, without anything of the engine but the types of its cells: each cell
//! knows its rows, and a blob is put together cell by cell.

use std::collections::BTreeSet;

use super::annotated::{Annotated, Kind};
use super::attention::Cell;
use super::memory::What;
use super::shape::Shape;
use super::tensor::{CacheTensor, type_number};

/// How the bytes of a row got there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// Nothing was ever written.
    #[default]
    Never,
    /// A row that the model computed, or a copy of one.
    Appended,
    /// A load.
    Loaded,
    /// The memory was filled with garbage.
    Garbage,
}

/// The rows of one cell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// How they got there.
    pub origin: Origin,
    /// The bytes for each tensor of the part; none where nothing was ever written.
    pub bytes: Option<Vec<Vec<u8>>>,
}

/// A recurrent cell.
#[derive(Clone, Debug, Default)]
struct State {
    pos: i32,
    sequences: BTreeSet<i32>,
    /// The rows are those of this cell, until they are copied.
    source: Option<usize>,
}

/// A memory on the host.
#[derive(Clone, Debug)]
pub struct Host {
    shape: Shape,
    tensors: Vec<CacheTensor>,
    kv_tensors: usize,
    cells: Vec<Vec<Cell>>,
    heads: Vec<usize>,
    /// Of each stream and cell.
    kv_rows: Vec<Vec<Rows>>,
    states: Vec<State>,
    state_rows: Vec<Rows>,
}

/// What was saved: cells with their rows, without any layout.
#[derive(Clone, Debug)]
pub struct Saved {
    what: What,
    /// By stream.
    kv: Option<Vec<Vec<SavedCell>>>,
    states: Option<Vec<SavedState>>,
}

/// A cell with its row of each tensor.
type SavedCell = (Cell, Vec<Vec<u8>>);

/// Position, sequences, and the row of each tensor.
type SavedState = (i32, BTreeSet<i32>, Vec<Vec<u8>>);

/// There is no room, or nothing to do: the operation is not one of this memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impossible;

impl Host {
    /// An empty memory.
    pub fn new(shape: &Shape) -> Self {
        let (streams, cells) = shape.kv.map_or((0, 0), |s| (s.streams, s.cells));
        let states = shape.recurrent.map_or(0, |s| s.cells);
        Host {
            shape: *shape,
            tensors: shape.tensors(),
            kv_tensors: shape.kv.map_or(0, |s| 2 * s.layers),
            cells: vec![vec![Cell::default(); cells]; streams],
            heads: vec![0; streams],
            kv_rows: vec![vec![Rows::default(); cells]; streams],
            states: vec![State::default(); states],
            state_rows: vec![Rows::default(); states],
        }
    }

    /// The last position of a sequence; none where it has no cell.
    pub fn last(&self, sequence: i32) -> Option<i32> {
        let cells = self.cells.iter().flatten().filter(|c| c.sequences.contains(&sequence)).map(|c| c.pos);
        let states = self.states.iter().filter(|c| c.sequences.contains(&sequence)).map(|c| c.pos);
        cells.chain(states).max()
    }

    /// Cells of the attention part that a sequence sees.
    pub fn cells_of(&self, sequence: i32) -> usize {
        self.cells.iter().flatten().filter(|c| c.sequences.contains(&sequence)).count()
    }

    /// Cells of the attention part in use.
    pub fn used(&self) -> usize {
        self.cells.iter().flatten().filter(|c| !c.sequences.is_empty()).count()
    }

    fn stream(&self, sequence: i32) -> usize {
        self.shape.kv.map_or(0, |s| sequence as usize % s.streams)
    }

    /// Free cells from the head on, around the end.
    fn free(&self, stream: usize, count: usize) -> Result<Vec<usize>, Impossible> {
        let (mut at, mut found) = (self.heads[stream], Vec::new());
        for _ in 0..self.cells[stream].len() {
            if found.len() < count && self.cells[stream][at].sequences.is_empty() {
                found.push(at);
            }
            at = (at + 1) % self.cells[stream].len();
        }
        if found.len() < count { Err(Impossible) } else { Ok(found) }
    }

    fn free_states(&self, count: usize) -> Result<usize, Impossible> {
        let taken =
            |c: usize| !self.states[c].sequences.is_empty() || self.states.iter().any(|other| other.source == Some(c));
        let mut start = 0;
        while start + count <= self.states.len() {
            match (start..start + count).rfind(|c| taken(*c)) {
                Some(last) => start = last + 1,
                None => return Ok(start),
            }
        }
        Err(Impossible)
    }

    /// Appends positions, each with the rows of the attention part; the rows of the recurrent part are those of the last.
    pub fn append(&mut self, sequence: i32, new: &[SavedCell]) -> Result<(), Impossible> {
        let mut next = self.clone();
        let (attention, last) = (self.shape.kv, new.last().ok_or(Impossible)?);
        if let Some(kv) = attention {
            let stream = self.stream(sequence);
            for (at, (cell, rows)) in self.free(stream, new.len())?.into_iter().zip(new) {
                next.cells[stream][at] = Cell { sequences: BTreeSet::from([sequence]), ..cell.clone() };
                next.kv_rows[stream][at] = appended(&rows[..self.kv_tensors]);
                next.heads[stream] = (at + 1) % self.cells[stream].len();
            }
            if kv.window > 0 {
                let gone = |c: &&mut Cell| c.pos + kv.window as i32 <= last.0.pos;
                next.cells[stream].iter_mut().filter(gone).for_each(|c| _ = c.sequences.remove(&sequence));
            }
        }
        if self.shape.recurrent.is_some() {
            next.copy_states();
            next.advance(sequence, last.0.pos, &last.1[self.kv_tensors..])?;
        }
        *self = next;
        Ok(())
    }

    /// Makes the copies that cells wait for.
    fn copy_states(&mut self) {
        for cell in 0..self.states.len() {
            if let Some(source) = self.states[cell].source.take() {
                self.state_rows[cell] = self.state_rows[source].clone();
            }
        }
    }

    fn advance(&mut self, sequence: i32, pos: i32, rows: &[Vec<u8>]) -> Result<(), Impossible> {
        let own = self.states.iter().position(|c| c.sequences == BTreeSet::from([sequence]));
        let cell = match own {
            Some(own) => own,
            None => {
                let free = self.free_states(1)?;
                self.states.iter_mut().for_each(|c| _ = c.sequences.remove(&sequence));
                free
            }
        };
        self.states[cell] = State { pos, sequences: BTreeSet::from([sequence]), source: None };
        self.state_rows[cell] = appended(rows);
        Ok(())
    }

    /// Takes positions of a sequence out; a recurrent part can only give up all of it.
    pub fn remove(&mut self, sequence: i32, from: i32, to: i32) {
        for cell in self.cells.iter_mut().flatten().filter(|c| c.pos >= from && c.pos < to) {
            cell.sequences.remove(&sequence);
        }
        self.remove_state(sequence);
    }

    fn remove_state(&mut self, sequence: i32) {
        for cell in &mut self.states {
            cell.sequences.remove(&sequence);
            if cell.sequences.is_empty() {
                cell.source = None;
            }
        }
    }

    /// Moves positions of a sequence. Cells that another sequence sees move with it.
    pub fn shift(&mut self, sequence: i32, from: i32, to: i32, by: i32) {
        for cell in self.cells.iter_mut().flatten().filter(|c| c.sequences.contains(&sequence)) {
            if cell.pos >= from && cell.pos < to {
                cell.pos += by;
            }
        }
        for state in self.states.iter_mut().filter(|c| c.sequences.contains(&sequence)) {
            state.pos += by;
        }
    }

    /// Lets `to` see what `from` sees. With `fork` the recurrent part gets a cell of its own.
    pub fn copy(&mut self, from: i32, to: i32, fork: bool) -> Result<(), Impossible> {
        let mut next = self.clone();
        next.cells.iter_mut().flatten().for_each(|c| _ = c.sequences.remove(&to));
        if self.shape.kv.is_some() {
            let (source, target) = (self.stream(from), self.stream(to));
            let seen = |c: &usize| self.cells[source][*c].sequences.contains(&from);
            let cells: Vec<usize> = (0..self.cells[source].len()).filter(seen).collect();
            if source == target {
                cells.iter().for_each(|c| _ = next.cells[source][*c].sequences.insert(to));
            } else {
                for (cell, place) in cells.iter().zip(next.free(target, cells.len())?) {
                    let copy = Cell { sequences: BTreeSet::from([to]), ..self.cells[source][*cell].clone() };
                    next.cells[target][place] = copy;
                    next.kv_rows[target][place] = self.kv_rows[source][*cell].clone();
                }
            }
        }
        if self.shape.recurrent.is_some() {
            next.remove_state(to);
            if let Some(cell) = next.states.iter().position(|c| c.sequences.contains(&from)) {
                if fork {
                    let place = next.free_states(1)?;
                    let (pos, source) = (next.states[cell].pos, next.states[cell].source.unwrap_or(cell));
                    next.states[place] = State { pos, sequences: BTreeSet::from([to]), source: Some(source) };
                } else {
                    next.states[cell].sequences.insert(to);
                }
            }
        }
        *self = next;
        Ok(())
    }

    /// What a save has to hold.
    pub fn save(&self, what: What, partial: bool) -> Saved {
        let meant = |sequences: &BTreeSet<i32>| sequences.iter().any(|s| what.includes(*s));
        let has_kv = self.shape.kv.is_some() && !(partial && self.shape.recurrent.is_some());
        let of_stream = |stream: usize| -> Vec<SavedCell> {
            let cells = self.cells[stream].iter().zip(&self.kv_rows[stream]);
            let chosen = cells.filter(|(cell, _)| meant(&cell.sequences));
            chosen.map(|(cell, rows)| (cell.clone(), rows.bytes.clone().unwrap_or_default())).collect()
        };
        let kv = has_kv.then(|| (0..self.cells.len()).map(of_stream).collect());
        let states = self.states.iter().enumerate().filter(|(_, c)| meant(&c.sequences)).map(|(i, c)| {
            let rows = self.state_rows[c.source.unwrap_or(i)].bytes.clone().unwrap_or_default();
            (c.pos, c.sequences.clone(), rows)
        });
        let states = self.shape.recurrent.is_some().then(|| states.collect());
        Saved { what, kv, states }
    }

    /// Puts a save into this memory, in the place of what it replaces.
    pub fn load(&mut self, saved: &Saved, what: What) -> Result<(), Impossible> {
        let mut next = self.clone();
        if let Some(streams) = &saved.kv {
            if what == What::All {
                next.cells.iter_mut().flatten().for_each(|c| *c = Cell::default());
                next.heads.fill(0);
            }
            if let Some(sequence) = what.sequence() {
                next.cells.iter_mut().flatten().for_each(|c| _ = c.sequences.remove(&sequence));
            }
            for (s, cells) in streams.iter().enumerate() {
                let target = what.sequence().map_or(s, |sequence| self.stream(sequence));
                for ((cell, rows), place) in cells.iter().zip(next.free(target, cells.len())?) {
                    let sequences = what.sequence().map_or(cell.sequences.clone(), |s| BTreeSet::from([s]));
                    next.cells[target][place] = Cell { sequences, ..cell.clone() };
                    next.kv_rows[target][place] = Rows { origin: Origin::Loaded, bytes: Some(rows.clone()) };
                }
                if what == What::All {
                    next.heads[s] = cells.len() % self.cells[s].len();
                }
            }
        }
        if let Some(states) = &saved.states {
            match what.sequence() {
                Some(sequence) => next.remove_state(sequence),
                None => next.states.fill(State::default()),
            }
            let first = next.free_states(states.len())?;
            for (i, (pos, sequences, rows)) in states.iter().enumerate() {
                let sequences = what.sequence().map_or(sequences.clone(), |s| BTreeSet::from([s]));
                next.states[first + i] = State { pos: *pos, sequences, source: None };
                next.state_rows[first + i] = Rows { origin: Origin::Loaded, bytes: Some(rows.clone()) };
            }
        }
        *self = next;
        Ok(())
    }

    /// Fills all rows with a byte. What the cells hold is then lost.
    pub fn garbage(&mut self, byte: u8) {
        let (kv, states) = self.tensors.split_at(self.kv_tensors);
        let rows = |tensors: &[CacheTensor]| tensors.iter().map(|t| vec![byte; t.row_bytes()]).collect();
        let rows = |tensors| Rows { origin: Origin::Garbage, bytes: Some(rows(tensors)) };
        self.kv_rows.iter_mut().flatten().for_each(|r| *r = rows(kv));
        self.state_rows.iter_mut().for_each(|r| *r = rows(states));
    }

    /// Runs of neighbouring cells whose rows of a tensor a save has, in all streams.
    pub fn runs(&self, tensor: usize, what: What) -> usize {
        let meant = |sequences: &BTreeSet<i32>| sequences.iter().any(|s| what.includes(*s));
        let lists: Vec<Vec<usize>> = if tensor < self.kv_tensors {
            let of_stream = |cells: &Vec<Cell>| (0..cells.len()).filter(|c| meant(&cells[*c].sequences)).collect();
            self.cells.iter().map(of_stream).collect()
        } else {
            let chosen = (0..self.states.len()).filter(|c| meant(&self.states[*c].sequences));
            vec![chosen.map(|c| self.states[c].source.unwrap_or(c)).collect()]
        };
        let begins = |list: &[usize], i: usize| i == 0 || list[i] != list[i - 1] + 1;
        lists.iter().map(|list| (0..list.len()).filter(|i| begins(list, *i)).count()).sum()
    }

    /// Every row of a tensor, by stream and cell.
    pub fn rows(&self, tensor: usize) -> Vec<(usize, usize, Origin, Option<&[u8]>)> {
        let (index, rows): (usize, Vec<&[Rows]>) = match tensor.checked_sub(self.kv_tensors) {
            None => (tensor, self.kv_rows.iter().map(Vec::as_slice).collect()),
            Some(state) => (state, vec![&self.state_rows]),
        };
        let row = |s: usize, c: usize, r: &'_ Rows| (s, c, r.origin);
        let rows =
            rows.into_iter().enumerate().flat_map(|(s, rows)| rows.iter().enumerate().map(move |(c, r)| (s, c, r)));
        rows.map(|(s, c, r)| {
            let (s, c, origin) = row(s, c, r);
            (s, c, origin, r.bytes.as_ref().map(|b| b[index].as_slice()))
        })
        .collect()
    }
}

fn appended(rows: &[Vec<u8>]) -> Rows {
    Rows { origin: Origin::Appended, bytes: Some(rows.to_vec()) }
}

impl Saved {
    /// The blob, byte for byte.
    pub fn blob(&self, shape: &Shape) -> Annotated {
        let mut blob = Annotated::default();
        let tensors = shape.tensors();
        let (kv_tensors, state_tensors) = tensors.split_at(shape.kv.map_or(0, |s| 2 * s.layers));
        if let (Some(kv), Some(streams)) = (&shape.kv, &self.kv) {
            put(&mut blob, Kind::Structure, "streams", streams.len() as u32);
            for (s, cells) in streams.iter().enumerate() {
                put(&mut blob, Kind::Structure, format!("stream {s} cells"), cells.len() as u32);
                if cells.is_empty() {
                    continue;
                }
                for (i, (cell, _)) in cells.iter().enumerate() {
                    let name = |what: &str| format!("stream {s} cell {i} {what}");
                    let sequences: Vec<i32> =
                        cell.sequences.iter().copied().filter(|s| self.what.includes(*s)).collect();
                    put(&mut blob, Kind::Place, name("position"), cell.pos as u32);
                    put(&mut blob, Kind::Structure, name("sequences"), sequences.len() as u32);
                    if kv.has_xy {
                        put(&mut blob, Kind::Place, name("x"), cell.xy[0] as u32);
                        put(&mut blob, Kind::Place, name("y"), cell.xy[1] as u32);
                    }
                    sequences.iter().for_each(|s| put(&mut blob, Kind::Place, name("sequence"), *s as u32));
                }
                let rows: Vec<&Vec<Vec<u8>>> = cells.iter().map(|(_, rows)| rows).collect();
                put_rows(&mut blob, "V is transposed", kv.v_trans, kv_tensors, &rows);
            }
        }
        if let (Some(recurrent), Some(states)) = (&shape.recurrent, &self.states) {
            put(&mut blob, Kind::Structure, "recurrent cells", states.len() as u32);
            for (i, (pos, sequences, _)) in states.iter().enumerate() {
                let name = |what: &str| format!("recurrent cell {i} {what}");
                let listed: &[i32] = &match self.what {
                    What::All => sequences.iter().copied().collect::<Vec<_>>(),
                    What::Sequence(_) => vec![],
                };
                put(&mut blob, Kind::Place, name("position"), *pos as u32);
                put(&mut blob, Kind::Structure, name("sequences"), listed.len() as u32);
                listed.iter().for_each(|s| put(&mut blob, Kind::Place, name("sequence"), *s as u32));
            }
            let rows: Vec<&Vec<Vec<u8>>> = states.iter().map(|(_, _, rows)| rows).collect();
            put_rows(&mut blob, "S is transposed", recurrent.s_trans, state_tensors, &rows);
        }
        blob
    }

    /// Cells that are saved, of the attention part by stream.
    pub fn counts(&self) -> (Vec<usize>, usize) {
        let kv = self.kv.as_ref().map(|streams| streams.iter().map(Vec::len).collect());
        (kv.unwrap_or_default(), self.states.as_ref().map_or(0, Vec::len))
    }

    /// Changes one byte of a row: the `at`-th of all rows, counted as they are kept. False where there are none.
    pub fn flip(&mut self, at: usize) -> bool {
        let kv = self.kv.iter_mut().flatten().flatten().map(|(_, rows)| rows);
        let states = self.states.iter_mut().flatten().map(|(_, _, rows)| rows);
        let mut bytes: Vec<&mut u8> = kv.chain(states).flatten().flatten().collect();
        let count = bytes.len();
        match bytes.get_mut(at % count.max(1)) {
            Some(byte) => **byte ^= 0x40,
            None => return false,
        }
        true
    }
}

fn put(blob: &mut Annotated, kind: Kind, name: impl Into<String>, number: u32) {
    blob.put(kind, name, &number.to_le_bytes());
}

/// The rows of cells, tensor by tensor.
fn put_rows(blob: &mut Annotated, flag: &str, transposed: bool, tensors: &[CacheTensor], cells: &[&Vec<Vec<u8>>]) {
    put(blob, Kind::Structure, flag, u32::from(transposed));
    put(blob, Kind::Structure, "layers", tensors.len() as u32 / 2);
    for (i, t) in tensors.iter().enumerate() {
        put(blob, Kind::Structure, format!("{} type", t.name), type_number(t.ty) as u32);
        if !t.transposed {
            blob.put(Kind::Structure, format!("{} row size", t.name), &(t.row_bytes() as u64).to_le_bytes());
            for (c, rows) in cells.iter().enumerate() {
                blob.put(Kind::Payload, format!("{} row {c}", t.name), &rows[i]);
            }
            continue;
        }
        put(blob, Kind::Structure, format!("{} element size", t.name), t.element_bytes() as u32);
        put(blob, Kind::Structure, format!("{} elements of a row", t.name), t.embd as u32);
        for j in 0..t.embd {
            let element = j * t.element_bytes()..(j + 1) * t.element_bytes();
            let elements: Vec<u8> = cells.iter().flat_map(|rows| rows[i][element.clone()].to_vec()).collect();
            if !elements.is_empty() {
                blob.put(Kind::Payload, format!("{} element {j}", t.name), &elements);
            }
        }
    }
}
