//! The runner and the command line, seen from outside: the real binary, its exit codes, its files and its words.
//!
//! The driver `fake` is the device under test where something must go wrong: it wraps the embedded device and breaks
//! the promises that `CONFORM_FAKE` names.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod absent;
mod conform;
mod deaths;
mod faults;
mod kills;
mod mistakes;
mod mutants;
mod output;
mod probe;
mod report;
mod same;
