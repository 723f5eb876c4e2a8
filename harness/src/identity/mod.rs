//! Which devices are one GPU.
//!
//! Every driver says of its devices what it likes ([`Claims`]). [`resolve`] reads that, tells [physical](Physical)
//! devices apart and brings together what several drivers reach, by [`Rules`] whose parts can be exchanged to see that
//! a wrong one is noticed. It is pure: live drivers and [recorded tables](Table) go the same way.
//!
//! - [`PciId`], [`Uuid`]: the ids, in every spelling that drivers have
//! - `merge`: the rules; `doubt`: what is odd about a table, in words
//! - `visible`: variables of the environment that hide devices
//! - `require`: what a run may demand of its devices
//! - [`invariant`], [`random`]: what must hold for any table, and tables to try it on

mod claims;
mod doubt;
pub mod invariant;
mod merge;
mod pci;
pub mod random;
mod require;
mod table;
mod uuid;
pub mod visible;

pub use claims::{Claims, Kind, MemoryClaim};
pub use merge::{Entry, Member, Physical, Repeated, Resolved, Rules, resolve, tell_apart};
pub use pci::{NotPci, PciId};
pub use require::Requirement;
pub use table::{Listed, SCHEMA, Table};
pub use uuid::{NotUuid, Uuid};
