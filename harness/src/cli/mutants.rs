//! `conform mutants`: a table of mutants and what catches them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use super::args::Mutants;
use super::{Exit, Outcome, devices, say, say_json};
use crate::backend::DeviceInfo;
use crate::discover::Found;
use crate::mutants::habit::{Habit, Seen};
use crate::mutants::hunt::{Hunted, Pair, Unusable, on_tables};
use crate::mutants::{Fault, IDENTITY, Mutant, table};
use crate::report::note;
use crate::select::{Filter, device_glob};
use crate::worker::{Memory, sys};

/// A line of the table.
#[derive(Serialize)]
struct Line {
    mutant: &'static str,
    bug: &'static str,
    what: &'static str,
    /// Its key; `tables` for faults that no device has.
    device: String,
    caught: bool,
    /// The check that failed first.
    check: Option<String>,
    /// What it found.
    failure: Option<String>,
    /// The case that told it from the healthy device.
    case: Option<String>,
    /// Cases up to that one, or all that were tried.
    cases: u64,
    /// False for a precision model under which the device was judged on no case.
    possible: bool,
    /// Cases that failed on the mutant and did not pass without it.
    unproven: u64,
    /// How long it was hunted: from the start of its worker, compilation included.
    seconds: f64,
    /// Why it could not be hunted.
    broken: Option<String>,
    /// The device worked before and is lost.
    #[serde(skip)]
    wedged: bool,
    /// What the field's habit saw.
    habit: Option<Seen>,
}

/// All lines together.
#[derive(Serialize)]
struct Summary {
    /// Those with a fault that some case of the device could show.
    possible: usize,
    caught: usize,
    caught_by_habit: usize,
    /// Half of those that were caught took no more cases.
    median_cases: u64,
    most_cases: u64,
    /// Hunted at once.
    jobs: usize,
    /// What the hunts took together; several ran at once.
    hunt_seconds: f64,
}

impl Summary {
    fn of(lines: &[Line], jobs: usize) -> Self {
        let mut cases: Vec<u64> = lines.iter().filter(|line| line.caught).map(|line| line.cases).collect();
        cases.sort_unstable();
        Summary {
            possible: lines.iter().filter(|line| line.possible).count(),
            caught: cases.len(),
            caught_by_habit: lines.iter().filter(|line| matches!(line.habit, Some(Seen::Caught { .. }))).count(),
            median_cases: cases.get(cases.len() / 2).copied().unwrap_or(0),
            most_cases: cases.last().copied().unwrap_or(0),
            jobs,
            hunt_seconds: lines.iter().map(|line| line.seconds).sum(),
        }
    }

    fn text(&self, time: Duration) -> String {
        let Summary { possible, caught, caught_by_habit, median_cases, most_cases, jobs, hunt_seconds } = self;
        format!(
            "{caught} of {possible} caught, half of them within {median_cases} cases and all within {most_cases}; the \
             field's habit catches {caught_by_habit}\n{:.0} s, of which {:.0} s hunting, {jobs} at once",
            time.as_secs_f64(),
            hunt_seconds / *jobs as f64
        )
    }
}

impl Line {
    /// How a hunt on a device ended; the habit was not asked yet.
    fn of(mutant: &Mutant, device: &str, hunted: Hunted, time: Duration) -> Self {
        let mut line = Line {
            mutant: mutant.id,
            bug: mutant.bug,
            what: mutant.what,
            device: device.to_owned(),
            caught: false,
            check: None,
            failure: None,
            case: None,
            cases: 0,
            possible: true,
            unproven: 0,
            seconds: time.as_secs_f64(),
            broken: None,
            wedged: false,
            habit: None,
        };
        match hunted {
            Hunted::Killed(kill) => {
                line.caught = true;
                (line.check, line.failure, line.case) = (Some(kill.check), Some(kill.failure), Some(kill.case));
                line.cases = kill.cases;
            }
            // A build that does nothing under a precision model cannot show what its bounds let pass.
            Hunted::Survived { cases, judged: 0, .. } if matches!(mutant.fault, Fault::Zeros { .. }) => {
                (line.cases, line.possible) = (cases, false);
            }
            Hunted::Survived { cases, unproven, .. } => (line.cases, line.unproven) = (cases, unproven),
            Hunted::Broken(Unusable { why, wedged }) => (line.broken, line.wedged) = (Some(why), wedged),
        }
        line
    }

    /// It should have been caught, and was not.
    fn is_missed(&self) -> bool {
        self.possible && !self.caught
    }
}

pub(super) fn mutants(args: &Mutants) -> Outcome {
    let globs = args.device.iter().map(|g| device_glob(g)).collect::<Result<Vec<_>, _>>();
    let globs = globs.map_err(|e| format!("--device: {e}"))?;
    let chosen = choose(&args.filters)?;
    let discovery = devices::find(&args.sources)?;
    if !discovery.refused.is_empty() {
        return Ok(Exit::Usage);
    }
    let found = discovery.select(&globs).map_err(|e| format!("--device: {e}"))?;
    let on_devices =
        found.iter().flat_map(|f| chosen.iter().filter(|m| is_hunted(args, m, &f.info)).map(move |m| (Some(f), *m)));
    let on_tables = chosen.iter().filter(|m| m.op == IDENTITY).map(|m| (None, *m));
    let pairs: Vec<(Option<&Found>, &Mutant)> = on_devices.chain(on_tables).collect();
    for mutant in chosen.iter().filter(|m| pairs.iter().all(|(_, other)| other.id != m.id)) {
        let why = if mutant.is_unseen() {
            "leaves results right, which only a device that watches each access (Oclgrind) can tell"
        } else {
            "is a fault that no device here can have"
        };
        note(&format!("{} {why}", mutant.id));
    }
    if pairs.is_empty() {
        return Err(format!("none of {} mutants applies to a device here; {}", chosen.len(), discovery.describe()));
    }

    let started = Instant::now();
    sys::keep_freed_memory();
    let memory = Memory::default();
    let mut habits = BTreeMap::new();
    for op in pairs.iter().filter(|(device, _)| device.is_some()).map(|(_, m)| m.op) {
        if !habits.contains_key(op) {
            habits.insert(op, Habit::of(op, &memory)?);
        }
    }
    let cores = || thread::available_parallelism().map_or(1, |n| n.get().min(8));
    let jobs = args.jobs.map_or_else(cores, usize::from);
    let lines = hunt_all(args, jobs, &pairs, &habits, &memory)?;
    let summary = Summary::of(&lines, jobs);
    if args.json {
        say_json(&json!({ "seed": args.seed, "mutants": lines, "summary": summary }))?;
    } else {
        say(&text(&lines, &summary, started))?;
    }
    let all_caught = summary.caught > 0 && summary.caught == summary.possible;
    Ok(match all_caught {
        _ if lines.iter().any(|line| line.wedged) => Exit::Wedged,
        true => Exit::Good,
        false => Exit::Unexpected,
    })
}

/// Whether a device can show a mutant. One that no result tells of is put into others as well if it is asked for by its
/// whole name: so it can be seen that they don't.
fn is_hunted(args: &Mutants, mutant: &Mutant, device: &DeviceInfo) -> bool {
    mutant.applies(device) || (args.filters.iter().any(|f| f == mutant.id) && mutant.fits(device))
}

/// The mutants that at least one filter selects. One that selects none is an error.
fn choose(filters: &[String]) -> Result<Vec<&'static Mutant>, String> {
    let filters = filters.iter().map(|f| Filter::new(f)).collect::<Result<Vec<_>, _>>();
    let filters = filters.map_err(|e| format!("mutant {e}"))?;
    if let Some(useless) = filters.iter().find(|f| !table::all().any(|m| f.matches(m.id))) {
        let ids: Vec<&str> = table::all().map(|m| m.id).collect();
        return Err(format!("'{}' selects no mutant; there are {}", useless.text(), ids.join(", ")));
    }
    Ok(table::all().filter(|m| filters.is_empty() || filters.iter().any(|f| f.matches(m.id))).collect())
}

/// Hunts each mutant on its device, several at once, and returns the lines in the order of the pairs.
fn hunt_all(
    args: &Mutants,
    jobs: usize,
    pairs: &[(Option<&Found>, &Mutant)],
    habits: &BTreeMap<&str, Habit>,
    memory: &Memory,
) -> Result<Vec<Line>, String> {
    let next = AtomicUsize::new(0);
    let lines: Mutex<Vec<(usize, Line)>> = Mutex::default();
    let lane = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some((device, mutant)) = pairs.get(i) else { return };
            let line = match (device, habits.get(mutant.op)) {
                (Some(device), Some(habit)) => hunt(args, device, mutant, habit, memory),
                _ => hunt_on_tables(args, mutant),
            };
            let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push((i, line));
            note(&format!("{}/{} {} on {}", lines.len(), pairs.len(), mutant.id, lines[lines.len() - 1].1.device));
        }
    };
    thread::scope(|scope| {
        let started: Vec<_> = (0..jobs).map(|_| thread::Builder::new().spawn_scoped(scope, lane)).collect();
        // Fewer lanes than asked for do the same work.
        match started.into_iter().find_map(Result::ok) {
            Some(_) => Ok(()),
            None => Err("cannot start a thread; the limit of processes (ulimit -u) may be too low"),
        }
    })?;
    let mut lines = lines.into_inner().unwrap_or_else(PoisonError::into_inner);
    lines.sort_by_key(|(i, _)| *i);
    Ok(lines.into_iter().map(|(_, line)| line).collect())
}

fn hunt(args: &Mutants, device: &Found, mutant: &Mutant, habit: &Habit, memory: &Memory) -> Line {
    let patience = args.patience.timeout;
    let mut pair = Pair::new(device, mutant, patience);
    let cases = usize::try_from(args.cases).unwrap_or(usize::MAX);
    let started = Instant::now();
    let hunted = pair.hunt(mutant, mutant.profile().cases(args.seed, args.cases).take(cases), memory);
    let mut line = Line::of(mutant, &device.info.key, hunted, started.elapsed());
    if !line.possible || line.broken.is_some() || habit.is_empty() || mutant.is_unseen() {
        return line;
    }
    match habit.look(&mut pair.mutated, &mut pair.healthy, patience) {
        Ok(seen) => line.habit = Some(seen),
        Err(Unusable { why, wedged }) => {
            (line.broken, line.wedged) = (Some(format!("the habit can't be asked: {why}")), wedged);
        }
    }
    line
}

/// Wrong rules are hunted with tables of devices, as many as a device gets cases.
fn hunt_on_tables(args: &Mutants, mutant: &Mutant) -> Line {
    let started = Instant::now();
    let hunted = match mutant.fault {
        Fault::Identity(change) => on_tables(change, args.seed, args.cases),
        _ => Hunted::Broken("only rules that tell devices apart are hunted without a device".to_owned().into()),
    };
    Line::of(mutant, "tables", hunted, started.elapsed())
}

fn text(lines: &[Line], summary: &Summary, started: Instant) -> String {
    let width = |of: fn(&Line) -> usize, least: usize| lines.iter().map(of).max().unwrap_or(0).max(least);
    let (id, key) = (width(|l| l.mutant.len(), 6), width(|l| l.device.len(), 6));
    let mut text = format!("{:<id$}  {:<key$}  caught by    cases  seconds  habit   modelled on\n", "mutant", "device");
    for line in lines {
        let check = match (&line.check, &line.broken) {
            (Some(check), _) => check,
            (None, Some(_)) => "(broken)",
            (None, None) if !line.possible => "(no case)",
            (None, None) => "(nothing)",
        };
        let habit = match &line.habit {
            Some(Seen::Caught { .. }) => "caught",
            Some(Seen::Missed { .. }) => "missed",
            None => "-",
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<id$}  {:<key$}  {check:<11} {:>6} {:>8.2}  {habit:<6}  {}",
            line.mutant, line.device, line.cases, line.seconds, line.bug
        );
    }
    for line in lines.iter().filter(|line| line.caught) {
        let _ = line.broken.iter().try_for_each(|why| writeln!(text, "\n{} on {}: {why}", line.mutant, line.device));
    }
    for line in lines.iter().filter(|line| line.is_missed()) {
        let why = line.broken.clone().unwrap_or_else(|| {
            let unproven = match line.unproven {
                0 => String::new(),
                n => format!("; {n} failed, and did not pass without the fault either"),
            };
            format!("{} cases tell no difference{unproven}", line.cases)
        });
        let _ = write!(text, "\nNOT CAUGHT {} on {}: {}\n  {why}\n", line.mutant, line.device, line.what);
    }
    let _ = write!(text, "\n{}\n", summary.text(started.elapsed()));
    text
}
