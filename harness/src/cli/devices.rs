//! `conform devices`

use std::fmt::Write as _;

use serde_json::json;

use super::args::{Devices, Sources};
use super::{Exit, Outcome, say, say_json};
use crate::backend;
use crate::discover::{Discovery, Source, discover};
use crate::report::note;
use crate::worker::Launch;

/// Asks every backend and every build that was named, with workers of this very program. A build that cannot be used is
/// told about here and does not keep the others from being used; [`Discovery::refused`] has it for the exit code.
pub(super) fn find(sources: &Sources) -> Result<Discovery, String> {
    backend::fake::check()?;
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program to start workers: {e}"))?;
    let launch = |backend: &str| Launch::conform(&program, backend);
    let builds = &sources.ggml;
    if let Some((i, b)) = builds.iter().enumerate().find(|(i, b)| builds[..*i].iter().any(|other| other.name == b.name))
    {
        let first = builds[..i].iter().find(|other| other.name == b.name).unwrap_or(b);
        let (name, one, other) = (&b.name, first.dir.display(), b.dir.display());
        return Err(format!("--ggml: {one} and {other} are both called '{name}'; write --ggml OTHERNAME={other}"));
    }
    let mut all = Source::backends(launch);
    all.extend(builds.iter().map(|build| Source::ggml(build, launch)));
    let discovery = discover(&all);
    for refused in &discovery.refused {
        note(&format!("conform: {}: {}", refused.backend, refused.why));
    }
    Ok(discovery)
}

pub(super) fn devices(args: &Devices) -> Outcome {
    let discovery = find(&args.sources)?;
    if args.json {
        let found: Vec<_> = discovery.found.iter().map(|f| &f.info).collect();
        let missing: Vec<_> = discovery.missing.iter().chain(&discovery.refused).collect();
        say_json(&json!({ "found": found, "missing": missing }))?;
    } else {
        say(&text(&discovery))?;
    }
    Ok(if discovery.refused.is_empty() { Exit::Good } else { Exit::Usage })
}

fn text(discovery: &Discovery) -> String {
    let mut text = String::new();
    let width = discovery.found.iter().map(|f| f.info.key.len()).max().unwrap_or(0);
    for f in &discovery.found {
        let i = &f.info;
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:<width$}  {} ({})", i.key, i.name, i.driver);
        let properties: Vec<String> = i.properties.iter().map(|(k, v)| format!("{k} {v}")).collect();
        if !properties.is_empty() {
            let _ = writeln!(text, "{:<width$}    {}", "", properties.join(", "));
        }
    }
    for m in discovery.missing.iter().chain(&discovery.refused) {
        let _ = writeln!(text, "not found: {}: {}", m.backend, m.why);
    }
    text
}
