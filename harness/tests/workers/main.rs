//! Workers die in every way; the parent must survive, blame the right case, and lose nothing.
//!
//! Real processes of the real binary, with the fake driver told how to behave.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod case;
mod peer;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use conform_harness::backend::Probe;
use conform_harness::worker::protocol::{Outcome, PROTOCOL, Request, Stage};
use conform_harness::worker::{Attempt, Cause, Job, Launch, Limits, OpenError, Supervisor, Worker};

use case::Case;

const CONFORM: &str = env!("CARGO_BIN_EXE_conform");
const PATIENT: Duration = Duration::from_secs(20);
const LIMITS: Limits = Limits { open: PATIENT, pause: Duration::from_millis(1), cases: None };

/// A fake device whose workers count their misdeeds together.
struct Fake {
    supervisor: Supervisor,
    _state: tempfile::TempDir,
}

fn fake(rules: &str) -> Fake {
    let state = tempfile::tempdir().unwrap();
    let launch = launch(rules, state.path());
    Fake { supervisor: Supervisor::new(launch, "fake-0", LIMITS), _state: state }
}

fn launch(rules: &str, state: &Path) -> Launch {
    Launch::conform(CONFORM, "fake").env("CONFORM_FAKE", rules).env("CONFORM_FAKE_STATE", state)
}

impl Fake {
    fn attempt(&mut self, case: &mut Case, deadline: Duration) -> Attempt {
        self.supervisor.attempt(&mut case.job(deadline))
    }

    /// Runs a case that must be executed well; gives the kind of incident on the way.
    fn runs(&mut self, name: &str, number: usize) -> Option<&'static str> {
        let mut case = Case::new(name, number);
        match self.attempt(&mut case, PATIENT) {
            Attempt::Ran { outcome: Outcome::Done {}, incident, .. } => {
                case.assert_right(number);
                incident.map(|i| i.kind)
            }
            other => panic!("{} gave {other:?}", case.plan.case),
        }
    }
}

#[test]
fn a_worker_does_no_more_cases_than_it_may() {
    let state = tempfile::tempdir().unwrap();
    let launch = launch("", state.path());
    let supervisor = Supervisor::new(launch, "fake-0", Limits { cases: Some(2), ..LIMITS });
    let mut fake = Fake { supervisor, _state: state };
    let mut pids = Vec::new();
    for number in 0..4 {
        fake.supervisor.open().unwrap();
        pids.push(fake.supervisor.pid());
        assert_eq!(fake.runs("good", number), None);
    }
    assert!(pids[0] == pids[1] && pids[1] != pids[2] && pids[2] == pids[3], "{pids:?}");
    assert_eq!(fake.supervisor.idle_deaths(), 0);
}

/// The first case is good, the second meets the behaviour twice, the third is good again.
fn believed(behaviour: &str, deadline: Duration) -> Cause {
    let mut fake = fake(&format!("{behaviour}@bad"));
    assert_eq!(fake.runs("good", 1), None);
    let death = match fake.attempt(&mut Case::new("bad", 2), deadline) {
        Attempt::Died(death) => death,
        other => panic!("{behaviour} gave {other:?}"),
    };
    assert_eq!(fake.runs("good", 3), None, "the next case must not pay");
    assert_eq!(fake.supervisor.idle_deaths(), 0);
    death.cause
}

/// The behaviour occurs once: the repeat's answer stands, and the incident is told.
fn unrepeated(behaviour: &str) -> &'static str {
    let mut fake = fake(&format!("{behaviour}@bad*1"));
    assert_eq!(fake.runs("good", 1), None);
    let kind = fake.runs("bad", 2).expect("an incident");
    assert_eq!(fake.runs("bad", 3), None);
    kind
}

#[test]
fn a_good_device_is_left_alone() {
    let mut fake = fake("");
    assert_eq!(fake.runs("a", 1), None);
    let pid = fake.supervisor.pid();
    assert_eq!(fake.runs("b", 2), None);
    assert_eq!(fake.supervisor.pid(), pid);
    let info = fake.supervisor.open().unwrap();
    assert_eq!((info.key.as_str(), info.backend.as_str()), ("fake-0", "fake"));
    drop(fake);
    assert!(!Path::new(&format!("/proc/{}", pid.unwrap())).exists(), "a zombie is left");
}

#[test]
fn probing_finds_devices_or_says_why_not() {
    let state = tempfile::tempdir().unwrap();
    let Probe::Found(found) = Worker::probe(&launch("", state.path()), PATIENT).unwrap() else { panic!() };
    assert_eq!(found[0].key, "fake-0");
    let Probe::Missing(why) = Worker::probe(&launch("explode", state.path()), PATIENT).unwrap() else { panic!() };
    assert!(why.contains("no behaviour 'explode'"), "{why}");
    let Probe::Missing(why) = Worker::probe(&Launch::conform(CONFORM, "nothing"), PATIENT).unwrap() else { panic!() };
    assert!(why.contains("no backend 'nothing'"), "{why}");
}

#[test]
fn a_repeated_death_is_believed() {
    assert_eq!(believed("crash", PATIENT), Cause::Signal(libc::SIGABRT));
    assert_eq!(believed("segv", PATIENT), Cause::Signal(libc::SIGSEGV));
    assert_eq!(believed("exit", PATIENT), Cause::Exit(3));
}

#[test]
fn a_repeated_hang_is_believed() {
    let deadline = Duration::from_millis(300);
    assert_eq!(believed("hang", deadline), Cause::Silent(deadline));
}

#[test]
fn repeated_nonsense_is_believed() {
    let Cause::Garbage(why) = believed("garbage", PATIENT) else { panic!() };
    assert!(why.contains("no json"), "{why}");
    let Cause::Garbage(why) = believed("wrong-case", PATIENT) else { panic!() };
    assert!(why.contains("case 'argsort/bad-2' it answers"), "{why}");
}

#[test]
fn an_unrepeated_death_is_an_incident() {
    assert_eq!(unrepeated("crash"), "signal");
    assert_eq!(unrepeated("segv"), "signal");
    assert_eq!(unrepeated("exit"), "exit");
    assert_eq!(unrepeated("garbage"), "garbage");
    assert_eq!(unrepeated("wrong-case"), "garbage");
}

#[test]
fn an_unrepeated_hang_is_an_incident() {
    let mut fake = fake("hang*1");
    let mut case = Case::new("bad", 2);
    match fake.attempt(&mut case, Duration::from_millis(300)) {
        Attempt::Ran { outcome: Outcome::Done {}, incident: Some(incident), .. } => assert_eq!(incident.kind, "silent"),
        other => panic!("{other:?}"),
    }
    case.assert_right(2);
}

#[test]
fn printing_disturbs_nothing_and_its_end_is_kept() {
    assert_eq!(fake("flood").runs("a", 1), None);
    let mut fake = fake("chatter;exit@bad");
    assert_eq!(fake.runs("good", 1), None);
    let Attempt::Died(death) = fake.attempt(&mut Case::new("bad", 2), PATIENT) else { panic!() };
    assert_eq!(death.cause, Cause::Exit(3));
    assert!(death.log.lines().any(|l| l.contains("\"ran\"")), "{}", death.log);
}

#[test]
fn a_death_that_is_known_needs_no_repeat() {
    for (known, is_known) in [("\"ran\"", true), ("another assertion", false)] {
        // A repeat would end well.
        let mut fake = fake("chatter;crash@bad*1");
        let (mut case, known_logs) = (Case::new("bad", 2), [known.to_owned()]);
        let mut job = Job { known_logs: &known_logs, ..case.job(PATIENT) };
        match (is_known, fake.supervisor.attempt(&mut job)) {
            (true, Attempt::Died(death)) => assert_eq!(death.cause, Cause::Signal(libc::SIGABRT)),
            (false, Attempt::Ran { incident: Some(_), .. }) => {}
            (_, other) => panic!("{other:?}"),
        }
        assert_eq!(fake.runs("good", 3), None);
    }
}

#[test]
fn honest_answers_are_no_deaths() {
    let mut fake = fake("unsupported@no;error@err");
    let pid = fake.supervisor.open().map(|_| ()).map(|()| fake.supervisor.pid()).unwrap();
    let mut ask = |name| match fake.attempt(&mut Case::new(name, 1), PATIENT) {
        Attempt::Ran { outcome, incident: None, .. } => outcome,
        other => panic!("{other:?}"),
    };
    assert!(matches!(ask("no"), Outcome::Unsupported { why } if why.contains("told to")));
    assert!(matches!(ask("err"), Outcome::Failed { stage: Stage::Run, why } if why.contains("-5")));
    assert_eq!(ask("good"), Outcome::Done {});
    assert_ne!(fake.supervisor.pid(), pid, "a device that failed gets a fresh worker");
}

#[test]
fn lies_reach_the_parent_and_confirming_takes_a_fresh_worker() {
    let mut fake = fake("swap-indices*1;touch-input*1");
    let mut case = Case::new("a", 0);
    assert!(matches!(fake.attempt(&mut case, PATIENT), Attempt::Ran { outcome: Outcome::Done {}, .. }));
    assert_eq!(case.output(0)[..2], [1, 0]);
    let pid = fake.supervisor.pid();
    assert!(matches!(fake.supervisor.confirm(&mut case.job(PATIENT)), Attempt::Ran { incident: None, .. }));
    case.assert_right(0);
    assert_ne!(fake.supervisor.pid(), pid);
}

#[test]
fn a_kill_between_cases_is_silent() {
    let mut fake = fake("");
    for number in 0..4 {
        assert_eq!(fake.runs("a", number), None);
        let pid = fake.supervisor.pid().unwrap();
        kill(pid);
        wait_until_dead(pid);
    }
    assert_eq!(fake.supervisor.idle_deaths(), 3);
}

#[test]
fn a_kill_is_believed_after_three_repeats() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let info = r#"{"key":"fake-0","backend":"x","name":"x","driver":"x","identity":{"driver":"x","index":0},"capabilities":{}}"#;
    let script = format!(
        r#"echo x >> '{}'; echo '{{"type":"hello","protocol":9,"program":"x"}}' >&4; read l <&3
        echo '{{"type":"opened","info":{info}}}' >&4; read l <&3; kill -9 $$"#,
        starts.display()
    );
    let mut supervisor = Supervisor::new(Launch::foreign("sh", ["-c", &script]), "fake-0", LIMITS);
    let Attempt::Died(death) = supervisor.attempt(&mut Case::new("a", 1).job(PATIENT)) else { panic!() };
    assert_eq!(death.cause, Cause::Signal(libc::SIGKILL));
    assert_eq!(std::fs::read_to_string(starts).unwrap().lines().count(), 4);
}

#[test]
fn random_kills_lose_nothing_and_wrong_no_case() {
    const KILLS: u32 = 20;
    let mut fake = fake("slow=2");
    let (pid, kills, over) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 0x9e37_79b9u32;
            let mut last = 0;
            while kills.load(Ordering::Relaxed) < KILLS && !over.load(Ordering::Relaxed) {
                let target = pid.load(Ordering::Relaxed);
                if target == last {
                    std::thread::yield_now();
                    continue;
                }
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                std::thread::sleep(Duration::from_micros(u64::from(seed >> 16) % 20_000));
                kill(target);
                last = target;
                kills.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut number = 0;
        while kills.load(Ordering::Relaxed) < KILLS || number < 100 {
            // `runs` panics on any death that is believed and on any wrong value.
            let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fake.runs("a", number)));
            let kind = run.inspect_err(|_| over.store(true, Ordering::Relaxed)).unwrap();
            assert!(kind.is_none_or(|k| k == "signal"), "{kind:?}");
            pid.store(fake.supervisor.pid().unwrap(), Ordering::Relaxed);
            number += 1;
        }
    });
}

#[test]
fn a_worker_that_does_not_read_cannot_block_the_parent() {
    let hello = r#"echo '{"type":"hello","protocol":9,"program":"deaf"}' >&4"#;
    // Larger than any pipe.
    let long = Request::Open { device: "x".repeat(2 << 20), mutant: None };
    let after_hello = |then: &str| {
        let launch = Launch::foreign("sh", ["-c", &format!("{hello}; {then}")]);
        Worker::start(&launch, PATIENT).unwrap().call(&long, Duration::from_millis(300)).unwrap_err().cause
    };
    assert_eq!(after_hello("sleep 60"), Cause::Silent(Duration::from_millis(300)));
    let Cause::DiedIdle(why) = after_hello("exec 3<&-; sleep 0.1; exit 7") else { panic!() };
    assert_eq!(*why, Cause::Exit(7));
}

#[test]
fn a_child_of_a_driver_neither_hides_its_death_nor_survives_it() {
    // The sleeper keeps the reply pipe and the log open beyond the worker's end.
    let launch = Launch::foreign("sh", ["-c", "sleep 60 & echo $!; kill -SEGV $$"]);
    let Err(OpenError::Died(death)) = Worker::start(&launch, PATIENT) else { panic!() };
    assert_eq!(death.cause, Cause::Signal(libc::SIGSEGV));
    wait_until_dead(death.log.trim().parse().unwrap());
}

#[test]
fn a_device_that_never_opens_is_unavailable() {
    let mut fake = fake("refuse-open");
    for _ in 0..2 {
        let Attempt::Unavailable(why) = fake.attempt(&mut Case::new("a", 1), PATIENT) else { panic!() };
        assert!(why.contains("told to refuse"), "{why}");
    }
    let mut absent = Supervisor::new(Launch::foreign("/nonexistent/worker", ["x"]), "fake-0", LIMITS);
    let why = absent.open().unwrap_err().to_string();
    assert!(why.contains("cannot start worker '/nonexistent/worker'"), "{why}");
    let mut dies = Supervisor::new(Launch::foreign("sh", ["-c", "echo no licence >&2; exit 9"]), "fake-0", LIMITS);
    let why = dies.open().unwrap_err().to_string();
    assert!(why.contains("exited with code 9") && why.contains("no licence"), "{why}");
}

#[test]
fn a_device_that_opened_once_and_then_refuses_is_wedged() {
    let state = tempfile::tempdir().unwrap();
    let flag = state.path().join("broken");
    // A foreign worker: it becomes the real one, with other rules once the flag is there.
    let script = format!(
        "if [ -e '{}' ]; then export CONFORM_FAKE=refuse-open; else export CONFORM_FAKE=exit@bad; fi; exec '{CONFORM}' worker fake",
        flag.display()
    );
    let mut supervisor = Supervisor::new(Launch::foreign("sh", ["-c", &script]), "fake-0", LIMITS);
    assert!(matches!(supervisor.attempt(&mut Case::new("a", 1).job(PATIENT)), Attempt::Ran { .. }));
    std::fs::write(flag, "").unwrap();
    let Attempt::Wedged(why) = supervisor.attempt(&mut Case::new("bad", 2).job(PATIENT)) else { panic!() };
    for part in ["was open before", "told to refuse", "5 times in a row", "on this case, worker exited with code 3"] {
        assert!(why.contains(part), "'{part}' is not in: {why}");
    }
    assert!(matches!(supervisor.attempt(&mut Case::new("a", 3).job(PATIENT)), Attempt::Wedged(_)), "it stays so");
}

#[test]
fn another_protocol_version_is_refused_in_clear_text() {
    let says = |line: &str| Launch::foreign("sh", ["-c", &format!("echo '{line}' >&4; sleep 60")]);
    let why = |line: &str| match Worker::spawn(&says(line), "x", None, PATIENT).map(|_| ()).unwrap_err() {
        OpenError::Died(death) => death.to_string(),
        other => panic!("{other:?}"),
    };
    let other_version = why(r#"{"type":"hello","protocol":99,"program":"p","extra":1}"#);
    let ours = format!("speaks protocol 99, this conform speaks {PROTOCOL}");
    assert!(other_version.contains(&ours), "{other_version}");
    assert!(why("Loading...").contains("is this a worker?"));
}

/// Through the shell's own `kill`: tests have no unsafe code.
fn kill(pid: u32) {
    assert!(Command::new("sh").arg("-c").arg(format!("kill -9 {pid} 2>/dev/null; true")).status().unwrap().success());
}

/// A killed process takes a moment to be dead, and a request sent in that moment could not be told from one that it died
/// of. Dead is a process whose last thread is.
fn wait_until_dead(pid: u32) {
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let is_dead = || threads() <= 1 && (state().is_empty() || state().contains(") Z"));
    let start = Instant::now();
    while !is_dead() {
        assert!(start.elapsed() < PATIENT, "process {pid} lives on: {}", state());
        std::thread::sleep(Duration::from_millis(1));
    }
}
