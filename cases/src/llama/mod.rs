//! Saving and loading the state of a real libllama.
//!
//! A tiny model with random weights is written as GGUF and loaded by the build under test, which then decodes tokens,
//! saves, loads and goes on. Nothing is known of the right logits: what is compared is a build with itself, once with the
//! state saved and restored in between and once without. Our own reader looks at the blobs.
//!
//! - [`gguf`]: the file format; [`weights`]: the models
//! - [`calls`]: what a build is asked, and the log that it leaves behind
//! - [`script`]: calls, and claims about what they give; `scenarios`: which ones; [`judge`]: whether the claims hold;
//!   `read`: what our own reader makes of a blob
//! - [`case_type`]: the op `llama_state`

pub mod calls;
pub mod case_type;
pub mod gguf;
pub mod judge;
mod read;
mod scenarios;
pub mod script;
pub mod weights;
