//! What people and files get to see of a run. Everything here listens to [events](crate::run::Event); nothing is
//! asked back.

pub mod failure;
pub mod progress;
pub mod record;
pub mod summary;

/// A time for people: `1.24 s`, `380 ms`.
pub(crate) fn seconds(micros: u64) -> String {
    match micros {
        0..10_000 => format!("{:.1} ms", micros as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", micros / 1000),
        _ => format!("{:.2} s", micros as f64 / 1e6),
    }
}
