//! Conformance trials for `cargo test`: one per device slot and group of cases.
//!
//! Names come from a fixed table, so listing touches no driver and names never change. The device of a trial is looked
//! for when the trial runs; one that is absent is ignored with the reason, unless `CONFORM_REQUIRE` names its slot.
//! Settings come from the environment (libtest refuses flags it does not know): `CONFORM_PROFILE`, `CONFORM_SEED`,
//! `CONFORM_DEVICE`, `CONFORM_REQUIRE`.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

use conform_cases::case::{Case, OPS};
use conform_cases::profile::Profile;
use conform_harness::discover::{Found, ask};
use conform_harness::report::failure::describe;
use conform_harness::result::Verdict;
use conform_harness::run::{Event, Settings, run};
use conform_harness::worker::Launch;
use glob::Pattern;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// A place for devices in the names of trials.
struct Slot {
    name: &'static str,
    backend: &'static str,
    holds: fn(&str) -> bool,
}

const SLOTS: [Slot; 5] = [
    Slot { name: "cpu", backend: "cpu", holds: |key| key == "cpu" },
    Slot { name: "opencl-pocl", backend: "opencl", holds: |key| key.starts_with("opencl-pocl-") },
    Slot { name: "opencl-rusticl", backend: "opencl", holds: |key| key.starts_with("opencl-rusticl-") },
    // Whatever else there is: usually a vendor's driver for a GPU.
    Slot {
        name: "opencl-other",
        backend: "opencl",
        holds: |key| !key.starts_with("opencl-pocl-") && !key.starts_with("opencl-rusticl-"),
    },
    Slot { name: "cuda-0", backend: "cuda", holds: |key| key == "cuda-0" },
];

/// Failures that one trial prints in full.
const SHOWN: usize = 3;

fn main() {
    let args = Arguments::from_args();
    let groups = OPS.iter().flat_map(|op| op.groups.iter().map(move |g| format!("{}/{g}", op.name)));
    let trials = groups.flat_map(|group| {
        SLOTS.iter().map(move |slot| {
            let (name, group) = (format!("{}/{group}", slot.name), group.clone());
            Trial::ignorable_test(name, move || trial(slot, &group))
        })
    });
    libtest_mimic::run(&args, trials.collect()).exit();
}

/// A variable of the environment, parsed; the error names it.
fn setting<T: std::str::FromStr<Err: std::fmt::Display>>(name: &str, default: T) -> Result<T, Failed> {
    match std::env::var(name) {
        Ok(text) => text.parse().map_err(|e| format!("{name}={text}: {e}").into()),
        Err(_) => Ok(default),
    }
}

fn trial(slot: &Slot, group: &str) -> Result<Completion, Failed> {
    let is_required = required()?.iter().any(|r| r == slot.name);
    let absent = |why: String| {
        if is_required {
            return Err(Failed::from(format!("{} is required here: {why}", slot.name)));
        }
        Ok(Completion::ignored_with(why))
    };
    let wanted: Pattern = setting("CONFORM_DEVICE", Pattern::new("*")?)?;
    let found = match devices(slot.backend) {
        Ok(found) => found,
        Err(why) => return absent(why),
    };
    let of_slot: Vec<Found> = found.into_iter().filter(|f| (slot.holds)(&f.info.key)).collect();
    if of_slot.is_empty() {
        return absent(format!("{} has no such device", slot.backend));
    }
    let devices: Vec<Found> = of_slot.into_iter().filter(|f| wanted.matches(&f.info.key)).collect();
    if devices.is_empty() {
        return absent(format!("CONFORM_DEVICE={wanted} selects none of it"));
    }
    judge(devices, group)
}

/// The slots that must have a device here. A name that is none would require nothing, unseen.
fn required() -> Result<Vec<String>, Failed> {
    let text = std::env::var("CONFORM_REQUIRE").unwrap_or_default();
    let names: Vec<String> = text.split(',').map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect();
    match names.iter().find(|n| SLOTS.iter().all(|s| s.name != **n)) {
        Some(unknown) => {
            let known: Vec<&str> = SLOTS.iter().map(|s| s.name).collect();
            Err(format!("CONFORM_REQUIRE: '{unknown}' is no slot; known: {}", known.join(", ")).into())
        }
        None => Ok(names),
    }
}

/// The seed of the trials: given, or fresh for a profile of drawn cases alone and printed, else the fixed one.
fn seed(profile: Profile) -> Result<u64, Failed> {
    static FRESH: OnceLock<u64> = OnceLock::new();
    if profile.is_fresh() && std::env::var_os("CONFORM_SEED").is_none() {
        let fresh = *FRESH.get_or_init(|| u64::from(rand::random::<u32>()));
        eprintln!("CONFORM_SEED={fresh}");
        return Ok(fresh);
    }
    setting("CONFORM_SEED", Profile::FIXED_SEED)
}

/// The devices of a backend, asked for once per process.
fn devices(backend: &str) -> Result<Vec<Found>, String> {
    static ASKED: Mutex<BTreeMap<String, Result<Vec<Found>, String>>> = Mutex::new(BTreeMap::new());
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let launch = || Launch::conform(env!("CARGO_BIN_EXE_conform"), backend);
    asked.entry(backend.to_owned()).or_insert_with(|| ask(backend, launch()).map_err(|m| m.why)).clone()
}

fn judge(devices: Vec<Found>, group: &str) -> Result<Completion, Failed> {
    let profile: Profile = setting("CONFORM_PROFILE", Profile::Smoke)?;
    let seed = seed(profile)?;
    let cases: Vec<Case> = profile.cases(seed, profile.drawn()).filter(|c| c.group() == group).collect();
    let (send, events) = mpsc::channel();
    run(&Settings { jobs: 1, ..Settings::default() }, devices, cases.into_iter(), &send)?;
    drop(send);
    let (mut judged, mut bad, mut texts, mut refused) = (0, 0, Vec::new(), None);
    for event in events {
        match event {
            Event::Result(r) => {
                judged += usize::from(r.verdict == Verdict::Pass);
                bad += usize::from(r.is_unexpected());
                if r.verdict == Verdict::Unsupported {
                    refused = r.why.clone();
                }
                if r.is_unexpected() && texts.len() < SHOWN {
                    texts.push(describe(&r));
                }
            }
            Event::Lost { why, .. } | Event::Skipped { why, .. } => {
                bad += 1;
                texts.push(why);
            }
            Event::CaseDone => {}
        }
    }
    match (bad, judged) {
        (0, 0) => match refused {
            Some(why) => Ok(Completion::ignored_with(format!("the device supports none of it: {why}"))),
            None => Err("no case of the group was judged".into()),
        },
        (0, _) => Ok(Completion::Completed),
        _ => Err(format!("{bad} unexpected results; the first:\n{}", texts.join("\n")).into()),
    }
}
