//! What a worker prints: read to the end, so that it never blocks, and forgotten but for the last part.

use std::collections::VecDeque;
use std::io::{PipeReader, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes kept.
const TAIL: usize = 16 << 10;

/// The last output of a process, as it grows.
pub(super) struct Log {
    tail: Arc<Mutex<VecDeque<u8>>>,
    drain: JoinHandle<()>,
}

impl Log {
    /// Starts draining a pipe.
    pub(super) fn start(mut pipe: PipeReader) -> std::io::Result<Self> {
        let tail = Arc::new(Mutex::new(VecDeque::with_capacity(2 * TAIL)));
        let kept = Arc::clone(&tail);
        let drain = std::thread::Builder::new().name("worker-log".into()).spawn(move || {
            let mut chunk = [0; 4 * TAIL];
            // Any error ends the log like its end does: a log is no verdict.
            while let Ok(n @ 1..) = pipe.read(&mut chunk) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(&chunk[n.saturating_sub(TAIL)..n]);
                let surplus = kept.len().saturating_sub(TAIL);
                kept.drain(..surplus);
            }
        })?;
        Ok(Log { tail, drain })
    }

    /// The last output. Waits up to `patience` for the pipe's end, which something the worker started may hold open.
    pub(super) fn tail(&self, patience: Duration) -> String {
        let until = Instant::now() + patience;
        while !self.drain.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut kept = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(kept.make_contiguous()).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_flood_leaves_its_tail() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let log = Log::start(reader).unwrap();
        for _ in 0..100 {
            writer.write_all(&[b'.'; 10_000]).unwrap();
        }
        writer.write_all(b"last words").unwrap();
        drop(writer);
        let tail = log.tail(Duration::from_secs(5));
        assert_eq!(tail.len(), TAIL);
        assert!(tail.ends_with("..last words"));
    }
}
