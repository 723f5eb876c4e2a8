//! Conformance trials for `cargo test`: one per device slot and group of cases.
//!
//! Names come from a fixed table, so listing touches no driver and names never change. The device of a trial is looked
//! for when the trial runs; one that is absent is ignored with the reason, unless `CONFORM_REQUIRE` names its slot.
//! Settings come from the environment (libtest refuses flags it does not know): `CONFORM_PROFILE`, `CONFORM_SEED`,
//! `CONFORM_DEVICE`, `CONFORM_REQUIRE`, `CONFORM_GGML`, `CONFORM_EXPECT`. Each build that `CONFORM_GGML` names is a slot,
//! and must have devices.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};

use conform_cases::case::{Case, OPS};
use conform_cases::formats::ElemType;
use conform_cases::profile::Profile;
use conform_harness::backend::ggml::Build;
use conform_harness::discover::{Found, Source, ask};
use conform_harness::expect::{self, Expectation};
use conform_harness::report::failure::describe;
use conform_harness::result::Verdict;
use conform_harness::run::{Event, Settings, run};
use conform_harness::worker::Launch;
use glob::Pattern;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// A place for devices in the names of trials.
#[derive(Clone)]
struct Slot {
    name: String,
    source: Place,
    holds: fn(&str) -> bool,
}

/// Whom to ask for the devices of a slot.
#[derive(Clone)]
enum Place {
    Backend(&'static str),
    Ggml(Build),
}

/// A slot that every machine has, whether it has its devices or not.
struct Fixed {
    name: &'static str,
    backend: &'static str,
    holds: fn(&str) -> bool,
}

const SLOTS: [Fixed; 5] = [
    Fixed { name: "cpu", backend: "cpu", holds: |key| key == "cpu" },
    Fixed { name: "opencl-pocl", backend: "opencl", holds: |key| key.starts_with("opencl-pocl-") },
    Fixed { name: "opencl-rusticl", backend: "opencl", holds: |key| key.starts_with("opencl-rusticl-") },
    // Whatever else there is: usually a vendor's driver for a GPU.
    Fixed {
        name: "opencl-other",
        backend: "opencl",
        holds: |key| !key.starts_with("opencl-pocl-") && !key.starts_with("opencl-rusticl-"),
    },
    Fixed { name: "cuda-0", backend: "cuda", holds: |key| key == "cuda-0" },
];

/// Failures that one trial prints in full.
const SHOWN: usize = 3;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    let slots = match slots() {
        Ok(slots) => slots,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let groups = || OPS.iter().flat_map(|op| op.groups.iter().map(move |g| format!("{}/{g}", op.name)));
    let trial_of = |slot: &Slot, group: String| {
        let (slot, slots) = (slot.clone(), slots.clone());
        let name = format!("{}/{group}", slot.name);
        Trial::ignorable_test(name, move || trial(&slot, &group, &slots))
    };
    let of_all = groups().flat_map(|group| slots.iter().map(move |slot| trial_of(slot, group.clone())));
    // Weights that only a build decodes.
    let builds = slots.iter().filter(|slot| matches!(slot.source, Place::Ggml(_)));
    let of_builds = ElemType::DECODED_BY_BUILD.iter().map(|w| format!("mul_mat_id/{w}"));
    let of_builds = of_builds.flat_map(|group| builds.clone().map(move |slot| trial_of(slot, group.clone())));
    libtest_mimic::run(&args, of_all.chain(of_builds).collect()).exit_code()
}

/// The fixed slots, and one for each build that the environment names. The error is one line.
fn slots() -> Result<Vec<Slot>, String> {
    let fixed =
        SLOTS.map(|Fixed { name, backend, holds }| Slot { name: name.into(), source: Place::Backend(backend), holds });
    let builds = listed("CONFORM_GGML").into_iter().map(|text| {
        let build: Build = text.parse().map_err(|why| format!("CONFORM_GGML={text}: {why}"))?;
        let build = Build { dir: in_workspace(&build.dir), ..build };
        Ok(Slot { name: build.prefix(), source: Place::Ggml(build), holds: |_| true })
    });
    let slots = fixed.into_iter().map(Ok).chain(builds).collect::<Result<Vec<_>, String>>()?;
    let twice = slots.iter().enumerate().find(|(i, slot)| slots[..*i].iter().any(|before| before.name == slot.name));
    match twice {
        Some((_, slot)) => Err(format!("CONFORM_GGML: two builds are called {}; write NAME=DIR", slot.name)),
        None => Ok(slots),
    }
}

/// The parts of a variable of the environment, between commas.
fn listed(name: &str) -> Vec<String> {
    let text = std::env::var(name).unwrap_or_default();
    text.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
}

/// A path as whoever calls `cargo test` means it: cargo starts tests in the package's folder.
fn in_workspace(path: &Path) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| path.to_owned(), |root| root.join(path))
}

/// A variable of the environment, parsed; the error names it.
fn setting<T: std::str::FromStr<Err: std::fmt::Display>>(name: &str, default: T) -> Result<T, Failed> {
    match std::env::var(name) {
        Ok(text) => text.parse().map_err(|e| format!("{name}={text}: {e}").into()),
        Err(_) => Ok(default),
    }
}

fn trial(slot: &Slot, group: &str, slots: &[Slot]) -> Result<Completion, Failed> {
    // Who names a build wants it tested.
    let is_required = required(slots)?.contains(&slot.name) || matches!(slot.source, Place::Ggml(_));
    let absent = |why: String| {
        if is_required {
            return Err(Failed::from(format!("{} is required here: {why}", slot.name)));
        }
        Ok(Completion::ignored_with(why))
    };
    let wanted: Pattern = setting("CONFORM_DEVICE", Pattern::new("*")?)?;
    let found = match devices(slot) {
        Ok(found) => found,
        Err(why) => return absent(why),
    };
    let of_slot: Vec<Found> = found.into_iter().filter(|f| (slot.holds)(&f.info.key)).collect();
    if of_slot.is_empty() {
        return absent(format!("there is no device of {}", slot.name));
    }
    let selected: Vec<Found> = of_slot.into_iter().filter(|f| f.is_named_by(&wanted)).collect();
    if selected.is_empty() {
        let all: Vec<Found> = slots.iter().flat_map(|slot| devices(slot).unwrap_or_default()).collect();
        // Whoever names a device wants it tested: a name that is none must not pass for a test of nothing.
        if !all.iter().any(|f| f.is_named_by(&wanted)) {
            let keys: Vec<&str> = all.iter().map(|f| f.info.key.as_str()).collect();
            return Err(format!("CONFORM_DEVICE={wanted} selects no device; found: {}", keys.join(", ")).into());
        }
        return absent(format!("CONFORM_DEVICE={wanted} selects none of it"));
    }
    judge(selected, group, is_required)
}

/// The slots that must have a device here. A name that is none would require nothing, unseen.
fn required(slots: &[Slot]) -> Result<Vec<String>, Failed> {
    let names = listed("CONFORM_REQUIRE");
    match names.iter().find(|n| slots.iter().all(|s| s.name != **n)) {
        Some(unknown) => {
            let known: Vec<&str> = slots.iter().map(|s| s.name.as_str()).collect();
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

/// The devices of a backend or a build, asked for once per process.
fn devices(slot: &Slot) -> Result<Vec<Found>, String> {
    static ASKED: Mutex<BTreeMap<String, Result<Vec<Found>, String>>> = Mutex::new(BTreeMap::new());
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let launch = |backend: &str| Launch::conform(env!("CARGO_BIN_EXE_conform"), backend);
    let source = match &slot.source {
        Place::Backend(name) => Source { name: (*name).to_owned(), launch: launch(name), told: None, part: None },
        Place::Ggml(build) => Source::ggml(build, launch),
    };
    asked.entry(source.name.clone()).or_insert_with(|| ask(&source).map_err(|m| m.why)).clone()
}

/// Known results, as `--expect` reads them.
fn expectations() -> Result<Vec<Expectation>, Failed> {
    let files = listed("CONFORM_EXPECT").into_iter().map(|file| expect::read(&in_workspace(Path::new(&file))));
    Ok(files.collect::<Result<Vec<_>, _>>().map_err(|e| format!("CONFORM_EXPECT: {e}"))?.concat())
}

fn judge(devices: Vec<Found>, group: &str, is_required: bool) -> Result<Completion, Failed> {
    let profile: Profile = setting("CONFORM_PROFILE", Profile::Smoke)?;
    let seed = seed(profile)?;
    let cases: Vec<Case> = profile.cases(seed, profile.drawn()).filter(|c| c.group() == group).collect();
    if cases.is_empty() {
        return Ok(Completion::ignored_with(format!("profile {profile} has no case of this group")));
    }
    // A build may be older than a type; our own devices know all theirs.
    let is_build = devices.iter().any(|d| d.told.is_some());
    let (send, events) = mpsc::channel();
    let settings = Settings { jobs: 1, expectations: expectations()?, ..Settings::default() };
    run(&settings, devices, cases.into_iter(), &send)?;
    drop(send);
    let (mut judged, mut bad, mut texts, mut refused) = (0, 0, Vec::new(), None);
    for event in events {
        match event {
            Event::Result(r) => {
                judged += usize::from(r.verdict == Verdict::Pass || r.expected.is_some());
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
            Some(why) if is_required && !is_build => Err(format!("the device supports none of it: {why}").into()),
            Some(why) => Ok(Completion::ignored_with(format!("the device supports none of it: {why}"))),
            None => Err("no case of the group was judged".into()),
        },
        (0, _) => Ok(Completion::Completed),
        _ => Err(format!("{bad} unexpected results; the first:\n{}", texts.join("\n")).into()),
    }
}
