//! Finding devices: every backend is asked in a worker of its own, so that a driver which crashes while it is asked
//! takes nothing with it.

use std::thread;
use std::time::Duration;

use glob::Pattern;
use serde::{Deserialize, Serialize};

use crate::backend::ggml::Build;
use crate::backend::{self, DeviceInfo, Probe};
use crate::identity::{Listed, Resolved, Rules, resolve};
use crate::worker::{Launch, OpenError, Worker};

/// How long a backend may take to list its devices.
const PROBE_DEADLINE: Duration = Duration::from_secs(60);

/// A device, and how to start a worker for it.
#[derive(Clone, Debug)]
pub struct Found {
    /// What it is.
    pub info: DeviceInfo,
    /// Starts a worker of its backend.
    pub launch: Launch,
    /// What conform must be told to find it again, as it stands on a command line: `--ggml NAME=DIR`.
    pub told: Option<String>,
}

impl Found {
    /// The device's name by its bus id, which is the same whatever its number is.
    pub fn alias(&self) -> Option<String> {
        (Rules::default().alias)(&Listed::from(&self.info))
    }

    /// Whether a glob names it, by its key or its alias.
    pub fn is_named_by(&self, glob: &Pattern) -> bool {
        (Rules::default().names)(glob, &self.info.key, self.alias().as_deref())
    }
}

/// Whom to ask for devices: a backend, or one build of it that was named.
#[derive(Clone, Debug)]
pub struct Source {
    /// The backend's name, or the build's with the backend before it.
    pub name: String,
    /// Starts a worker of it.
    pub launch: Launch,
    /// What was said to have it asked, as on a command line: then it must have devices.
    pub told: Option<String>,
    /// Starts a worker of the part that can be asked where asking for all of it ends the worker.
    pub part: Option<Launch>,
}

impl Source {
    /// Every backend that needs no telling. `launch` makes the command that starts a worker of a backend.
    pub fn backends(launch: impl Fn(&str) -> Launch) -> Vec<Self> {
        let source = |name| Source { name: String::from(name), launch: launch(name), told: None, part: None };
        backend::names().into_iter().map(source).collect()
    }

    /// A build of ggml.
    pub fn ggml(build: &Build, launch: impl Fn(&str) -> Launch) -> Self {
        Source {
            name: build.prefix(),
            launch: build.tell(launch("ggml")),
            told: Some(format!("--ggml {build}")),
            part: Some(build.tell_cpu_only(launch("ggml"))),
        }
    }
}

/// A backend without devices, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// What was asked for by name and has no devices: a configuration error.
    pub refused: Vec<Missing>,
}

/// Asks one source.
pub fn ask(source: &Source) -> Result<Vec<Found>, Missing> {
    ask_parts(source).map(|(found, _)| found)
}

/// The same, with the parts that have no devices.
fn ask_parts(source: &Source) -> Result<(Vec<Found>, Vec<Missing>), Missing> {
    let Source { name, launch, told, part } = source;
    let missing = |why| Missing { backend: name.clone(), why };
    // A death is believed when a fresh worker repeats it: it may have come from outside.
    let answer = match Worker::probe(launch, PROBE_DEADLINE) {
        Err(OpenError::Died(_)) => Worker::probe(launch, PROBE_DEADLINE),
        answer => answer,
    };
    let parts = |probe| match probe {
        Probe::Found(devices) => Ok((devices, Vec::new())),
        Probe::FoundPart { devices, absent } => Ok((devices, absent)),
        Probe::Missing(why) => Err(why),
    };
    let (launch, devices, absent) = match answer {
        Ok(probe) => parts(probe).map(|(devices, absent)| (launch, devices, absent)).map_err(missing)?,
        Err(OpenError::Died(death)) => {
            let why = format!("{death}{}", death.last_line());
            // A driver that dies while it is asked must not take those along that would answer.
            let part = part.as_ref().and_then(|part| Some((part, Worker::probe(part, PROBE_DEADLINE).ok()?)));
            let part = part.and_then(|(launch, probe)| Some((launch, parts(probe).ok()?)));
            let Some((launch, (devices, mut absent))) = part else { return Err(missing(why)) };
            absent.push(format!("{why}; only a part of it was asked then"));
            (launch, devices, absent)
        }
        Err(e) => return Err(missing(e.to_string())),
    };
    let found = devices.into_iter().map(|info| Found { info, launch: launch.clone(), told: told.clone() }).collect();
    Ok((found, absent.into_iter().map(missing).collect()))
}

/// Asks every source at once.
pub fn discover(sources: &[Source]) -> Discovery {
    let answers: Vec<_> = thread::scope(|scope| {
        let asked = sources.iter().map(|s| {
            // Without a thread it is asked when its turn comes.
            (s, thread::Builder::new().spawn_scoped(scope, || ask_parts(s)).ok())
        });
        let asked: Vec<_> = asked.collect();
        let answer = |(s, thread): (_, Option<thread::ScopedJoinHandle<'_, _>>)| {
            let s: &Source = s;
            (s, thread.and_then(|t| t.join().ok()).unwrap_or_else(|| ask_parts(s)))
        };
        asked.into_iter().map(answer).collect()
    });
    let mut discovery = Discovery::default();
    for (source, answer) in answers {
        match answer {
            Ok((found, missing)) => {
                discovery.found.extend(found);
                discovery.missing.extend(missing);
            }
            Err(missing) if source.told.is_some() => discovery.refused.push(missing),
            Err(missing) => discovery.missing.push(missing),
        }
    }
    discovery
}

impl Discovery {
    /// The devices that at least one glob matches; all of them without globs. A glob that matches none is an error.
    pub fn select(&self, globs: &[Pattern]) -> Result<Vec<Found>, String> {
        for glob in globs {
            if !self.found.iter().any(|f| f.is_named_by(glob)) {
                return Err(format!("no device matches '{glob}'; {}", self.describe()));
            }
        }
        let wanted = |f: &&Found| globs.is_empty() || globs.iter().any(|g| f.is_named_by(g));
        Ok(self.found.iter().filter(wanted).cloned().collect())
    }

    /// What drivers said of their devices.
    pub fn listed(&self) -> Vec<Listed> {
        self.found.iter().map(|f| Listed::from(&f.info)).collect()
    }

    /// Which devices are one GPU.
    pub fn resolve(&self) -> Resolved {
        resolve(&self.listed(), &Rules::default())
    }

    /// One line: what there is, and why the rest is missing.
    pub fn describe(&self) -> String {
        let keys: Vec<&str> = self.found.iter().map(|f| f.info.key.as_str()).collect();
        let missing: Vec<String> =
            self.missing.iter().chain(&self.refused).map(|m| format!("{}: {}", m.backend, m.why)).collect();
        let missing = if missing.is_empty() { String::new() } else { format!("; not found: {}", missing.join("; ")) };
        format!("found: {}{missing}", keys.join(", "))
    }
}
