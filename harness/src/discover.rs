//! Finding devices: every backend is asked in a worker of its own, so that a driver which crashes while it is asked
//! takes nothing with it.

use std::thread;
use std::time::Duration;

use glob::Pattern;
use serde::Serialize;

use crate::backend::{self, DeviceInfo, Probe};
use crate::worker::{Launch, Worker};

/// How long a backend may take to list its devices.
const PROBE_DEADLINE: Duration = Duration::from_secs(60);

/// A device, and how to start a worker for it.
#[derive(Clone, Debug)]
pub struct Found {
    /// What it is.
    pub info: DeviceInfo,
    /// Starts a worker of its backend.
    pub launch: Launch,
}

/// A backend without devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The backend.
    pub backend: String,
    /// Why, in one line.
    pub why: String,
}

/// What was found and what was not.
#[derive(Clone, Debug, Default)]
pub struct Discovery {
    /// Devices, in the order of backends.
    pub found: Vec<Found>,
    /// Backends without devices.
    pub missing: Vec<Missing>,
}

/// Asks one backend. `launch` starts a worker of it.
pub fn ask(backend: &str, launch: Launch) -> Result<Vec<Found>, Missing> {
    let missing = |why| Err(Missing { backend: backend.to_owned(), why });
    match Worker::probe(&launch, PROBE_DEADLINE) {
        Ok(Probe::Found(devices)) => {
            Ok(devices.into_iter().map(|info| Found { info, launch: launch.clone() }).collect())
        }
        Ok(Probe::Missing(why)) => missing(why),
        Err(e) => missing(e.to_string()),
    }
}

/// Asks every backend at once. `launch` makes the command that starts a worker of a backend.
pub fn discover(launch: &(impl Fn(&str) -> Launch + Sync)) -> Discovery {
    let answers: Vec<_> = thread::scope(|scope| {
        let asked = backend::names().into_iter().map(|b| {
            // Without a thread it is asked when its turn comes.
            (b, thread::Builder::new().spawn_scoped(scope, move || ask(b, launch(b))).ok())
        });
        let asked: Vec<_> = asked.collect();
        let answer = |(b, thread): (&'static str, Option<thread::ScopedJoinHandle<'_, _>>)| {
            thread.and_then(|t| t.join().ok()).unwrap_or_else(|| ask(b, launch(b)))
        };
        asked.into_iter().map(answer).collect()
    });
    let mut discovery = Discovery::default();
    for answer in answers {
        match answer {
            Ok(found) => discovery.found.extend(found),
            Err(missing) => discovery.missing.push(missing),
        }
    }
    discovery
}

impl Discovery {
    /// The devices that at least one glob matches; all of them without globs. A glob that matches none is an error.
    pub fn select(&self, globs: &[Pattern]) -> Result<Vec<Found>, String> {
        for glob in globs {
            if !self.found.iter().any(|f| glob.matches(&f.info.key)) {
                return Err(format!("no device matches '{glob}'; {}", self.describe()));
            }
        }
        let wanted = |f: &&Found| globs.is_empty() || globs.iter().any(|g| g.matches(&f.info.key));
        Ok(self.found.iter().filter(wanted).cloned().collect())
    }

    /// One line: what there is, and why the rest is missing.
    fn describe(&self) -> String {
        let keys: Vec<&str> = self.found.iter().map(|f| f.info.key.as_str()).collect();
        let missing: Vec<String> = self.missing.iter().map(|m| format!("{}: {}", m.backend, m.why)).collect();
        let missing = if missing.is_empty() { String::new() } else { format!("; not found: {}", missing.join("; ")) };
        format!("found: {}{missing}", keys.join(", "))
    }
}
