//! `conform devices`

use std::fmt::Write as _;

use serde_json::json;

use super::args::Devices;
use super::{Exit, Outcome, say, say_json};
use crate::backend;
use crate::discover::{Discovery, discover};
use crate::worker::Launch;

/// Asks every backend, with workers of this very program.
pub(super) fn find() -> Result<Discovery, String> {
    backend::fake::check()?;
    let program = std::env::current_exe().map_err(|e| format!("cannot find this program to start workers: {e}"))?;
    Ok(discover(&|backend: &str| Launch::conform(&program, backend)))
}

pub(super) fn devices(args: &Devices) -> Outcome {
    let discovery = find()?;
    if args.json {
        let found: Vec<_> = discovery.found.iter().map(|f| &f.info).collect();
        say_json(&json!({ "found": found, "missing": discovery.missing }))?;
    } else {
        say(&text(&discovery))?;
    }
    Ok(Exit::Good)
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
    for m in &discovery.missing {
        let _ = writeln!(text, "not found: {}: {}", m.backend, m.why);
    }
    text
}
