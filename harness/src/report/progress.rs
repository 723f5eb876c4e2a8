//! How far a run is: a bar on a terminal, a plain line now and then elsewhere. On stderr.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::note;

/// How often a plain line is written.
const EVERY: Duration = Duration::from_secs(10);

/// Shows how far a run is.
pub struct Progress {
    bar: ProgressBar,
    plain: bool,
    total: Option<u64>,
    last: Instant,
    bad: u64,
}

impl Progress {
    /// Progress over so many cases, or an unknown number.
    pub fn new(total: Option<u64>) -> Self {
        let plain = !std::io::stderr().is_terminal();
        let bar = match total {
            _ if plain => ProgressBar::hidden(),
            Some(total) => ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()),
            None => ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()),
        };
        let template = match total {
            Some(_) => "{wide_bar} {pos}/{len} cases  {msg}  {elapsed} (about {eta} left)",
            None => "{spinner} {pos} cases  {msg}  {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Progress { bar, plain, total, last: Instant::now(), bad: 0 }
    }

    /// A case is done on all devices.
    pub fn case_done(&mut self) {
        self.bar.inc(1);
        if self.plain && self.last.elapsed() >= EVERY {
            self.last = Instant::now();
            let of = self.total.map(|t| format!(" of {t}")).unwrap_or_default();
            note(&format!("{}{of} cases, {} unexpected", self.bar.position(), self.bad));
        }
    }

    /// A result was unexpected.
    pub fn unexpected(&mut self) {
        self.bad += 1;
        self.bar.set_message(format!("{} unexpected", self.bad));
    }

    /// Writes something without tearing the bar.
    pub fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bar.suspend(write)
    }

    /// Removes the bar.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}
