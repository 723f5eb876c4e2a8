//! `conform devices`

use std::collections::BTreeMap;

use serde_json::json;

use super::args::{Devices, Sources};
use super::{Exit, Outcome, say, say_json};
use crate::backend::{self, DeviceInfo};
use crate::discover::{Discovery, Missing, Source, discover};
use crate::identity::{Kind, Listed, Physical, Resolved, Rules, SCHEMA, Table, resolve, visible};
use crate::report::note;
use crate::report::record::environment;
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
    if let Some(file) = &args.from {
        let table = Table::read(file).map_err(|e| format!("--from: {e}"))?;
        let view = View::new(table.devices, table.missing, table.environment);
        show(&view, &BTreeMap::new(), args.json)?;
        return Ok(Exit::Good);
    }
    let discovery = find(&args.sources)?;
    let missing: Vec<Missing> = discovery.missing.iter().chain(&discovery.refused).cloned().collect();
    let view = View::new(discovery.listed(), missing, environment());
    if let Some(file) = &args.record {
        let (devices, missing, environment) = (view.devices.clone(), view.missing.clone(), view.environment.clone());
        let table = Table { schema: SCHEMA, note: None, environment, devices, missing };
        table.write(file).map_err(|e| format!("--record: {e}"))?;
    }
    let infos = discovery.found.iter().map(|f| (f.info.key.as_str(), &f.info)).collect();
    show(&view, &infos, args.json)?;
    Ok(if discovery.refused.is_empty() { Exit::Good } else { Exit::Usage })
}

/// What there is to be shown: of this machine, or of a recorded table.
struct View {
    devices: Vec<Listed>,
    missing: Vec<Missing>,
    environment: BTreeMap<String, String>,
    resolved: Resolved,
}

impl View {
    fn new(devices: Vec<Listed>, missing: Vec<Missing>, environment: BTreeMap<String, String>) -> Self {
        let mut resolved = resolve(&devices, &Rules::default());
        resolved.warnings.extend(visible::disobeyed(&environment, &devices));
        View { devices, missing, environment, resolved }
    }
}

/// Descriptions of devices by key; a recorded table has none.
type Infos<'a> = BTreeMap<&'a str, &'a DeviceInfo>;

fn show(view: &View, infos: &Infos<'_>, json: bool) -> Result<(), String> {
    if !json {
        return say(&text(view));
    }
    let found: Vec<_> = view.devices.iter().map(|d| described(view, infos, d)).collect();
    say_json(&json!({
        "found": found,
        "physical": view.resolved.physical,
        "warnings": view.resolved.warnings,
        "visibility": visible::describe(&view.environment),
        "missing": view.missing,
    }))
}

/// All that is known of a device, and its alias.
fn described(view: &View, infos: &Infos<'_>, device: &Listed) -> serde_json::Value {
    let mut all = match infos.get(device.key.as_str()) {
        Some(info) => json!(info),
        None => json!(device),
    };
    all["alias"] = json!(alias(view, &device.key));
    all
}

fn alias<'a>(view: &'a View, key: &str) -> Option<&'a str> {
    view.resolved.of(key)?.devices.iter().find(|d| d.key == key)?.alias.as_deref()
}

/// Devices of the processor, then each GPU with all that reach it, then what else is to be known.
fn text(view: &View) -> String {
    let is_processor = |key: &str| view.resolved.of(key).is_none_or(|p| p.kind == Kind::Cpu);
    let mut text: String = view.devices.iter().filter(|d| is_processor(&d.key)).map(|d| entry(view, "", d)).collect();
    for gpu in view.resolved.physical.iter().filter(|p| p.kind != Kind::Cpu) {
        text += &title(gpu);
        let reaches = |d: &&Listed| gpu.devices.iter().any(|member| member.key == d.key);
        text.extend(view.devices.iter().filter(reaches).map(|d| entry(view, "  ", d)));
    }
    let warnings = view.resolved.warnings.iter().map(|w| format!("warning: {w}\n"));
    let variables = visible::describe(&view.environment).into_iter().map(|v| v + "\n");
    let missing = view.missing.iter().map(|m| format!("not found: {}: {}\n", m.backend, m.why));
    text.extend(warnings.chain(variables).chain(missing));
    text
}

/// A GPU, in a line.
fn title(gpu: &Physical) -> String {
    let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
    let free = gpu.free_memory.map(|free| format!(" ({:.1} free)", gib(free))).unwrap_or_default();
    let parts = [
        Some(gpu.name.clone()),
        (gpu.kind != Kind::Unknown).then(|| gpu.kind.word().to_owned()),
        gpu.total_memory.map(|total| format!("{:.1} GiB{free}", gib(total))),
        gpu.pci.as_ref().map(|pci| format!("at {pci}")),
        gpu.uuid.as_ref().map(|uuid| format!("UUID {uuid}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ") + "\n"
}

/// A device, in a line or two.
fn entry(view: &View, indent: &str, device: &Listed) -> String {
    let width = view.devices.iter().map(|d| d.key.len()).max().unwrap_or(0);
    let mut text = format!("{indent}{:<width$}  {} ({})\n", device.key, device.name, device.driver);
    let alias = alias(view, &device.key).map(|alias| format!("alias {alias}"));
    let properties = device.properties.iter().map(|(k, v)| format!("{k} {v}"));
    let properties: Vec<String> = alias.into_iter().chain(properties).collect();
    if !properties.is_empty() {
        text += &format!("{indent}{:<width$}    {}\n", "", properties.join(", "));
    }
    text
}
