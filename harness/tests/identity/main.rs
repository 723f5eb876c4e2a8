//! Which devices are one GPU: recorded tables, random ones, old mistakes, and the command line on top.
//!
//! Each line of known bugs about devices (class D) has a table in `golden/devices` or a test of the command line.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod commands;
mod enumeration;
#[path = "../cuda/fake.rs"]
mod fake;
mod faults;
mod tables;
