//! What conform tests, as pure functions of a case id.
//!
//! A case id unfolds to a [plan](plan::Plan) (tensors and steps) and to input
//! bytes; for given inputs the oracle knows the right value of every output
//! element, how wrong a correct device may be, and whether it may be wrong at
//! all; the judge compares. Nothing here touches a GPU API, a process, a clock
//! or the file system.
#![forbid(unsafe_code)]

pub mod argsort;
pub mod case;
pub mod cost;
pub mod draw;
pub mod formats;
pub mod id;
pub mod judge;
pub mod keys;
pub mod model;
pub mod mul_mat_id;
pub mod op;
pub mod plan;
pub mod profile;
pub mod stream;
pub mod top_k;

pub use case::Case;
