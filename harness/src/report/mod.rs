//! What people and files get to see of a run. Everything here listens to [events](crate::run::Event); nothing is
//! asked back.

pub mod failure;
pub mod markdown;
mod memory;
pub mod progress;
pub mod read;
pub mod record;
pub mod summary;
mod table;

use std::io::Write as _;

/// A time for people: `1.24 s`, `380 ms`.
pub(crate) fn seconds(micros: u64) -> String {
    match micros {
        0..10_000 => format!("{:.1} ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", micros / 1000),
        _ => format!("{:.2} s", micros as f64 / 1e6),
    }
}

/// Writes a line to stderr. A stderr that is closed or full is no reason to end, least of all to panic: the exit code
/// still says what came of it.
pub fn note(line: &str) {
    const SHOWN: usize = 2000;
    // What was given may hold anything; on a terminal it must stay one line, and do nothing.
    let mut text = String::new();
    for c in line.chars().take(SHOWN) {
        if c.is_control() { text.extend(c.escape_default()) } else { text.push(c) }
    }
    let more = if line.chars().nth(SHOWN).is_some() { "…" } else { "" };
    // Nothing can be done about a closed stderr.
    let _ = writeln!(std::io::stderr(), "{text}{more}");
}
