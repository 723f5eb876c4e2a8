//! Which of the devices that were found a run is on.

use glob::Pattern;

use crate::discover::{Discovery, Found};
use crate::identity::{Listed, Repeated, Requirement};

/// The devices of a run.
pub(super) struct Chosen {
    /// Those it is on.
    pub(super) found: Vec<Found>,
    /// Those that reach a GPU which one of the others stands for.
    pub(super) left_out: Vec<Repeated>,
    /// What was asked for by name.
    pub(super) asked: Vec<Asked>,
}

/// A glob of `--device`.
pub(super) struct Asked {
    pub(super) glob: Pattern,
    /// The devices whose results answer it.
    pub(super) keys: Vec<String>,
}

/// Chooses by name, refuses what does not meet a requirement, and leaves out what reaches the same GPU again. The error
/// is one line.
pub(super) fn choose(
    all: &Discovery,
    globs: &[Pattern],
    dedupe: bool,
    required: &[Requirement],
) -> Result<Chosen, String> {
    let selected = all.select(globs).map_err(|e| format!("--device: {e}"))?;
    require(required, &selected)?;
    let keys: Vec<&str> = selected.iter().map(|f| f.info.key.as_str()).collect();
    let left_out = if dedupe { all.resolve().repeated(&keys) } else { Vec::new() };
    let asked = globs.iter().map(|glob| Asked::new(glob, &selected, &left_out)).collect();
    let is_kept = |f: &Found| left_out.iter().all(|l| l.device != f.info.key);
    Ok(Chosen { found: selected.into_iter().filter(is_kept).collect(), left_out, asked })
}

impl Asked {
    fn new(glob: &Pattern, selected: &[Found], left_out: &[Repeated]) -> Self {
        let answers = |f: &Found| {
            let other = left_out.iter().find(|l| l.device == f.info.key);
            other.map_or_else(|| f.info.key.clone(), |l| l.stands_for_it.clone())
        };
        let keys = selected.iter().filter(|f| f.is_named_by(glob)).map(answers).collect();
        Asked { glob: glob.clone(), keys }
    }
}

/// Every device must be one that was required, and every one that was required must be there.
fn require(required: &[Requirement], selected: &[Found]) -> Result<(), String> {
    if required.is_empty() {
        return Ok(());
    }
    let devices: Vec<Listed> = selected.iter().map(|f| Listed::from(&f.info)).collect();
    let unmet = |device: &Listed| -> Option<String> {
        let why: Vec<String> = required.iter().map(|r| r.unmet(device)).collect::<Option<_>>()?;
        Some(format!("{}: {}", device.key, why.join("; ")))
    };
    if let Some(why) = devices.iter().find_map(unmet) {
        return Err(format!("--require: {why} (--device chooses the devices of a run)"));
    }
    match required.iter().find(|r| devices.iter().all(|d| r.unmet(d).is_some())) {
        Some(none) => Err(format!("--require {none}: no device of this run is that")),
        None => Ok(()),
    }
}
