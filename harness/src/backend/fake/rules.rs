//! The rules of the fake driver: `behaviour[=value][@part-of-case-id][*times]`.
//!
//! The behaviour ends at the first `@`; `times` follows the last `*`, which no
//! case id contains. It limits how often the rule applies (a case that is loaded
//! counts once), over all worker processes that share the directory named by
//! `CONFORM_FAKE_STATE`, else within one process.

use std::env::VarError;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::lies::Lie;
use super::moves::MoveLie;
use crate::identity::{Claims, Kind};

/// The environment variable that holds the rules.
pub const FAKE: &str = "CONFORM_FAKE";

/// The environment variable that names a directory in which workers count together.
pub const FAKE_STATE: &str = "CONFORM_FAKE_STATE";

/// A way to misbehave.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Behaviour {
    /// Aborts.
    Crash,
    /// Segmentation fault.
    Segv,
    /// Exits with code 3.
    Exit,
    /// Never comes back.
    Hang,
    /// Takes its time.
    Slow(Duration),
    /// Writes no message where a reply belongs.
    Garbage,
    /// Answers another request.
    WrongCase,
    /// Prints 64 MiB.
    Flood,
    /// Prints what looks like replies.
    Chatter,
    /// A device error while running.
    Error,
    /// Aborts when it is asked for devices.
    ProbeCrash,
    /// Prints what looks like replies when it is asked for devices.
    ProbeChatter,
    /// Says that its device has this bus id, and so is a GPU.
    Pci(String),
    /// Says that its device has this UUID.
    Uuid(String),
    /// Cannot be opened.
    RefuseOpen,
    /// Supports nothing.
    Unsupported,
    /// Loses so many bytes of its memory, of which there is 1 GiB.
    Leak(u64),
    /// Changes an input.
    TouchInput,
    /// Writes behind the end of outputs.
    GuardHit,
    /// Changes outputs.
    Lie(Lie),
    /// Moves bytes wrongly.
    Move(MoveLie),
}

impl Behaviour {
    /// True for what happens in a device, between load and free.
    pub(super) fn is_of_device(&self) -> bool {
        use Behaviour as B;
        let is_of_driver = matches!(self, B::ProbeCrash | B::ProbeChatter | B::Pci(_) | B::Uuid(_) | B::RefuseOpen);
        !is_of_driver && !matches!(self, B::Garbage | B::WrongCase)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let plain = match name {
            "crash" => Behaviour::Crash,
            "segv" => Behaviour::Segv,
            "exit" => Behaviour::Exit,
            "hang" => Behaviour::Hang,
            "garbage" => Behaviour::Garbage,
            "wrong-case" => Behaviour::WrongCase,
            "flood" => Behaviour::Flood,
            "chatter" => Behaviour::Chatter,
            "error" => Behaviour::Error,
            "refuse-open" => Behaviour::RefuseOpen,
            "probe-crash" => Behaviour::ProbeCrash,
            "probe-chatter" => Behaviour::ProbeChatter,
            "unsupported" => Behaviour::Unsupported,
            "touch-input" => Behaviour::TouchInput,
            "guard-hit" => Behaviour::GuardHit,
            "pci" => return Ok(Behaviour::Pci(value.ok_or("pci needs a bus id: pci=0000:3b:00.0")?.to_owned())),
            "uuid" => return Ok(Behaviour::Uuid(value.ok_or("uuid needs a UUID")?.to_owned())),
            "slow" => {
                let ms = value.and_then(|v| v.parse().ok()).ok_or("slow needs milliseconds: slow=5")?;
                return Ok(Behaviour::Slow(Duration::from_millis(ms)));
            }
            "leak" => {
                let bytes = value.and_then(|v| v.parse().ok()).ok_or("leak needs bytes: leak=4096")?;
                return Ok(Behaviour::Leak(bytes));
            }
            _ => match MoveLie::parse(name) {
                Some(lie) => Behaviour::Move(lie),
                None => return Lie::parse(name, value).map(Behaviour::Lie),
            },
        };
        if value.is_some() { Err(format!("behaviour '{name}' takes no value")) } else { Ok(plain) }
    }
}

#[derive(Debug)]
struct Rule {
    behaviour: Behaviour,
    case_part: String,
    times: Option<u32>,
    used: AtomicU32,
}

/// All rules, in order.
#[derive(Debug)]
pub(super) struct Rules {
    rules: Vec<Rule>,
    state: Option<PathBuf>,
}

impl Rules {
    /// Reads the environment; without `CONFORM_FAKE` there are no rules.
    pub(super) fn from_env() -> Result<Self, String> {
        let text = match std::env::var(FAKE) {
            Ok(text) => text,
            Err(VarError::NotPresent) => String::new(),
            Err(VarError::NotUnicode(text)) => return Err(format!("{FAKE}={text:?}: is no UTF-8")),
        };
        if let Some(dir) = std::env::var_os(FAKE_STATE).filter(|dir| !Path::new(dir).is_dir()) {
            return Err(format!("{FAKE_STATE}={dir:?}: is no directory"));
        }
        Self::parse(&text, std::env::var_os(FAKE_STATE).map(PathBuf::from))
            .map_err(|why| format!("{FAKE}='{text}': {why}"))
    }

    fn parse(text: &str, state: Option<PathBuf>) -> Result<Self, String> {
        let rules = text.split(';').filter(|t| !t.trim().is_empty()).map(|t| Rule::parse(t.trim()));
        Ok(Rules { rules: rules.collect::<Result<_, _>>()?, state })
    }

    /// The first wanted behaviour that a rule with turns left has for this case; it costs a turn.
    pub(super) fn draw(&self, case: &str, wanted: fn(&Behaviour) -> bool) -> Option<&Behaviour> {
        let mut all = self.rules.iter().enumerate();
        all.find(|(i, rule)| rule.matches(case, wanted) && self.take_turn(*i, rule)).map(|(_, rule)| &rule.behaviour)
    }

    /// All wanted behaviours; each costs a turn.
    pub(super) fn draw_all(&self, case: &str, wanted: fn(&Behaviour) -> bool) -> Vec<&Behaviour> {
        let all = self.rules.iter().enumerate();
        let drawn = all.filter(|(i, rule)| rule.matches(case, wanted) && self.take_turn(*i, rule));
        drawn.map(|(_, rule)| &rule.behaviour).collect()
    }

    /// What the driver says its device is.
    pub(super) fn identity(&self) -> Claims {
        let mut claims = Claims::new(super::NAME, 0, Kind::Cpu);
        for rule in &self.rules {
            match &rule.behaviour {
                Behaviour::Pci(id) => (claims.pci, claims.kind) = (Some(id.clone()), Kind::Discrete),
                Behaviour::Uuid(id) => claims.uuid = Some(id.clone()),
                _ => {}
            }
        }
        claims
    }

    fn take_turn(&self, index: usize, rule: &Rule) -> bool {
        let Some(times) = rule.times else { return true };
        match &self.state {
            None => rule.used.fetch_add(1, Ordering::Relaxed) < times,
            // Creating a file that must not exist yet is atomic between processes.
            Some(dir) => (0..times).any(|turn| {
                let name = dir.join(format!("rule-{index}-turn-{turn}"));
                OpenOptions::new().write(true).create_new(true).open(name).is_ok()
            }),
        }
    }
}

impl Rule {
    fn matches(&self, case: &str, wanted: fn(&Behaviour) -> bool) -> bool {
        wanted(&self.behaviour) && case.contains(&self.case_part)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (rest, times) = match text.rsplit_once('*') {
            Some((rest, n)) => (rest, Some(n.parse().map_err(|_| format!("'{n}' is no number of times in '{text}'"))?)),
            None => (text, None),
        };
        let (behaviour, case_part) = rest.split_once('@').unwrap_or((rest, ""));
        let behaviour = Behaviour::parse(behaviour)?;
        Ok(Rule { behaviour, case_part: case_part.to_owned(), times, used: AtomicU32::new(0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(_: &Behaviour) -> bool {
        true
    }

    #[test]
    fn rules_match_and_run_out() {
        let rules = Rules::parse("crash@w=q8_0*1; slow=5 ;unsupported@argsort", None).unwrap();
        let slow = Behaviour::Slow(Duration::from_millis(5));
        assert_eq!(rules.draw_all("mul_mat_id/w=q8_0/x", any), [&Behaviour::Crash, &slow]);
        assert_eq!(rules.draw_all("mul_mat_id/w=q8_0/x", any), [&slow]);
        assert_eq!(rules.draw_all("argsort", any), [&slow, &Behaviour::Unsupported]);
    }

    #[test]
    fn processes_count_together() {
        let dir = tempfile::tempdir().unwrap();
        let other = || Rules::parse("exit*2", Some(dir.path().to_owned())).unwrap();
        assert!(other().draw("", any).is_some());
        assert!(other().draw("", any).is_some());
        assert!(other().draw("", any).is_none());
    }

    #[test]
    fn mistakes_are_named() {
        let why = |text: &str| Rules::parse(text, None).unwrap_err();
        assert!(why("explode").contains("'explode'"));
        assert!(why("crash*x").contains("no number of times"));
        assert!(why("slow").contains("slow=5"));
        assert!(why("crash=1").contains("takes no value"));
        assert!(why("scale").contains("scale"));
        assert!(why("upload-late=1").contains("takes no value"));
    }
}
