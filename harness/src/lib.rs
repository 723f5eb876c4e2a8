//! How conform's cases are run.
//!
//! The parent process turns ids into plans and inputs, has workers execute them,
//! and judges the bytes they leave behind; it never loads a driver. Data flows
//! one way: id → plan → inputs → oracle beside [workers](worker) → judge →
//! events → report.

pub mod backend;
pub mod worker;
