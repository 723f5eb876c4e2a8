//! `conform list`, and which cases a selection means. Nothing here touches a driver.

use conform_cases::case::Case;
use conform_cases::profile::Profile;

use super::args::{List, Selection};
use super::{Exit, Outcome, say, say_json};
use crate::bugs;
use crate::report::note;
use crate::select::Filter;

/// Cases selected, and the seed they were drawn with.
pub(super) struct Selected {
    pub(super) cases: Vec<Case>,
    pub(super) seed: u64,
}

/// The seed of a selection.
pub(super) fn seed(s: &Selection) -> u64 {
    match (s.seed, s.profile) {
        (Some(seed), _) => seed,
        (None, profile) if profile.is_fresh() => u64::from(rand::random::<u32>()),
        (None, _) => Profile::FIXED_SEED,
    }
}

/// The filters of a selection.
pub(super) fn filters(s: &Selection) -> Result<Vec<Filter>, String> {
    s.filters.iter().map(|f| Filter::new(f).map_err(|e| format!("filter {e}"))).collect()
}

/// All selected cases. A filter that selects nothing is an error, and so is an empty selection.
pub(super) fn select(s: &Selection) -> Result<Selected, String> {
    let seed = seed(s);
    let filters = filters(s)?;
    let mut used = vec![false; filters.len()];
    let mut total = 0u64;
    let mut cases = Vec::new();
    for case in s.profile.cases(seed, s.cases.unwrap_or(s.profile.drawn())) {
        total += 1;
        let id = case.id();
        let mut selected = filters.is_empty();
        for (filter, used) in filters.iter().zip(&mut used) {
            let hit = filter.matches(&id);
            selected |= hit;
            *used |= hit;
        }
        if selected && s.shard.is_none_or(|shard| shard.holds(&id)) {
            cases.push(case);
        }
    }
    if let Some(at) = used.iter().position(|u| !u) {
        let text = filters[at].text();
        if text.parse::<Case>().is_ok() {
            return Err(format!("profile {} does not hold {text}; run it with `conform replay`", s.profile));
        }
        return Err(format!(
            "filter '{text}' selects none of the {total} cases of profile {}; see `conform list --profile {}`",
            s.profile, s.profile
        ));
    }
    if cases.is_empty() {
        return Err(format!("no case is selected out of {total} of profile {}", s.profile));
    }
    Ok(Selected { cases, seed })
}

pub(super) fn list(args: &List) -> Outcome {
    let mut ids: Vec<String> = select(&args.selection)?.cases.iter().map(Case::id).collect();
    if let Some(bug) = &args.bug {
        let bug = bugs::find(bug).map_err(|e| format!("--bug: {e}"))?;
        if let Some(reason) = &bug.reason {
            return Err(format!("--bug: no case shows {} ({}): {reason}", bug.id, bug.from));
        }
        ids.retain(|id| bug.is_shown_by(id));
        let profile = args.selection.profile;
        if ids.is_empty() {
            return Err(format!("--bug: no case selected of profile {profile} shows {}; try --profile full", bug.id));
        }
        note(&format!("{} ({}), by check {}", bug.id, bug.from, bug.checks.join(", ")));
    }
    if args.json {
        say_json(&ids)?;
    } else {
        say(&(ids.join("\n") + "\n"))?;
    }
    Ok(Exit::Good)
}
