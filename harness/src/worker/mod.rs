//! Workers: the processes that load drivers, and the parent's grip on them.
//!
//! A driver may crash, hang, print, leak or scribble. So it is loaded in a
//! process of its own, which only executes a plan and leaves bytes behind in
//! [shared] memory; the parent speaks a small [protocol] with it, knows how it
//! died ([handle]), and decides what to believe ([supervise]). The other side of
//! the protocol, for backends written in Rust, is [`serve()`].

#[cfg(not(unix))]
compile_error!("conform needs a Unix system: a worker's control channel is a pair of inherited file descriptors");

mod check;
mod execute;
pub mod handle;
mod launch;
mod log;
pub mod protocol;
pub mod serve;
pub mod shared;
mod spare;
pub mod supervise;
pub(crate) mod sys;

pub(crate) use execute::FREED;
pub use handle::{Cause, Death, OpenError, Worker};
pub use launch::Launch;
pub use serve::serve;
pub use shared::Shared;
pub use spare::{Memory, Pooled};
pub use supervise::{Attempt, Incident, Job, Limits, NoDevice, Supervisor};
