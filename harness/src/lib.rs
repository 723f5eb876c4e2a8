//! How conform's cases are run.
//!
//! The parent process turns ids into plans and inputs, has workers execute them,
//! and judges the bytes they leave behind; it never loads a driver. Data flows
//! one way: id → plan → inputs → oracle beside [workers](worker) → judge →
//! [events](run::Event) → [report].
//!
//! - [`backend`]: what executes steps; only worker processes open devices
//! - [`worker`]: worker processes, seen from both sides
//! - [`discover`], [`select`]: which devices and cases there are; [`identity`]: which devices are one GPU
//! - [`run`]: takes cases through devices
//! - [`probe`]: what arithmetic devices show
//! - [`state_file`]: state in files
//! - [`mutants`]: faults put into devices on purpose, and what catches them
//! - [`result`]: what comes out
//! - [`expect`]: which results are known, and why
//! - [`report`]: what people and files get to see of it
//! - [`cli`]: the commands

pub mod backend;
pub mod bugs;
pub mod cli;
pub mod discover;
pub mod expect;
pub mod identity;
pub mod mutants;
pub mod probe;
pub mod report;
pub mod result;
pub mod run;
pub mod select;
pub mod state_file;
pub mod worker;
