//! Saving and loading the state of a model's memory: attention KV caches and recurrent states.
//!
//! Two implementations stand side by side. The engine is what an inference
//! engine has, and what the cases test: tables of cells on the host, rows in
//! tensors of a device, blobs written and read through small interfaces whose
//! transfers are deferred and batched. The [`host`] model is the oracle: a cache
//! that keeps the bytes of each row with its cell and moves nothing.
//!
//! - [`tensor`]: where the rows of cells lie; [`shape`]: what a memory consists of
//! - [`io`]: the interfaces that state is written and read through; [`plain`]: memory of the host as a device
//! - [`blob`]: the formats; [`annotated`]: with a name for every byte; [`container`]: what stands before a memory's part
//! - [`attention`], [`recurrent`]: the two kinds of memory; [`memory`]: one, the other, or both, as one
//! - [`checkpoint`]: snapshots that are updated in place
//! - [`stages`]: the steps of the engine that can be exchanged; [`mutants`]: wrong ones, which the cases must notice
//! - [`ops`]: what is done to a memory, drawn from a seed; [`lower`]: the engine doing it, as steps of a plan
//! - [`case_type`]: the ops `kv_state`, `recurrent_state`, `hybrid_state` and `checkpoint`; [`judge`], [`refuse`]: what must hold
//!
//! The formats are those of the llama.cpp family in 2026: little-endian, packed.

pub mod annotated;
pub mod attention;
pub mod blob;
pub mod case_type;
pub mod checkpoint;
pub mod container;
pub mod host;
pub mod io;
pub mod judge;
pub mod lower;
pub mod memory;
pub mod mutants;
pub mod ops;
pub mod plain;
pub mod recurrent;
pub mod refuse;
pub mod shape;
pub mod stages;
pub mod tensor;
