//! The ggml backend: folders that are no build are refused in one line, and real builds compute what a plain loop does.
//!
//! The first half needs nothing. The second half runs on the builds that `CONFORM_GGML` lists (`[NAME=]DIR`, separated
//! by `:`), or else on what `ci/fetch-ggml.sh` has left in `target/ggml`; without any it prints so and passes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "ggml/broken.rs"]
mod broken;
#[path = "ggml/builds.rs"]
mod builds;
#[path = "ggml/moves.rs"]
mod moves;
#[path = "ggml/plans.rs"]
mod plans;
