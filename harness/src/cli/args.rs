//! The arguments of every command.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};
use conform_cases::judge::REPEATS;
use conform_cases::profile::Profile;

use crate::backend::ggml::Build;
use crate::identity::Requirement;
use crate::select::Shard;

/// Conformance tests for GPU inference backends.
#[derive(Debug, Parser)]
#[command(name = "conform", version, disable_help_subcommand = true)]
pub(super) struct Args {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Every device found, and what was looked for and not found, with why
    Devices(Devices),
    /// Case ids, one a line
    List(List),
    /// Shapes, routing and tile map of a case
    Show(Show),
    /// Run cases on devices and judge the results
    Run(Box<Run>),
    /// Run single cases again and say whether they still fail
    Replay(Replay),
    /// Put known faults into our own kernels, and tell which case catches each
    Mutants(Mutants),
    /// Show a run again, out of the files that --out wrote
    Report(Report),
}

#[derive(Debug, ClapArgs)]
pub(super) struct Report {
    /// The folder of the run
    #[arg(value_name = "DIR")]
    pub(super) dir: PathBuf,
    /// Write Markdown, for a page or the summary of a CI job
    #[arg(long)]
    pub(super) markdown: bool,
}

/// Where to look for devices, beside the backends that are found by themselves.
#[derive(Debug, ClapArgs)]
pub(super) struct Sources {
    /// Folder with the libraries of a ggml build, and the name it goes by [default: the folder's]; may be repeated
    #[arg(long, value_name = "[NAME=]DIR")]
    pub(super) ggml: Vec<Build>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Devices {
    #[command(flatten)]
    pub(super) sources: Sources,
    /// Run exact cases on each device, and say what arithmetic it shows beside what this program takes it to have
    #[arg(long)]
    pub(super) probe: bool,
    /// Devices to probe, as globs over their keys or their aliases by bus id [default: all that are found]
    #[arg(long, value_name = "GLOB", requires = "probe")]
    pub(super) device: Vec<String>,
    /// How long a device that is probed may take for a case
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration, requires = "probe")]
    pub(super) timeout: Duration,
    /// Write what drivers said into a file, which --from shows on any machine
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// Show the devices of a file that --record wrote, and ask no driver
    #[arg(long, value_name = "FILE", conflicts_with_all = ["ggml", "probe", "record"])]
    pub(super) from: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Which cases.
#[derive(Debug, ClapArgs)]
pub(super) struct Selection {
    /// Case ids to select: a prefix, or a glob with * ? [
    #[arg(value_name = "FILTER")]
    pub(super) filters: Vec<String>,
    /// smoke, full, random, corpus, ggml-types or ggml-grid
    #[arg(long, default_value = "smoke")]
    pub(super) profile: Profile,
    /// Seed of the drawn cases [default: 1; profiles random and ggml-types: a fresh one]
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// How many cases to draw [default: as the profile says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=10_000_000))]
    pub(super) cases: Option<u64>,
    /// Only the K-th of N equal parts
    #[arg(long, value_name = "K/N")]
    pub(super) shard: Option<Shard>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct List {
    #[command(flatten)]
    pub(super) selection: Selection,
    /// Only cases that may show this reported bug, for example A14
    #[arg(long, value_name = "ID")]
    pub(super) bug: Option<String>,
    /// Print a JSON array
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Show {
    /// Case id
    pub(super) case: String,
    /// Write inputs, expected values and bounds as .npy files
    #[arg(long, value_name = "DIR")]
    pub(super) dump: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// How often a case is run.
#[derive(Debug, ClapArgs)]
pub(super) struct Repeats {
    /// Run each case so many times on the same inputs, and compare the bits
    #[arg(long, value_name = "N", default_value_t = REPEATS as u16, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(super) repeat: u16,
}

/// How long a worker may be silent.
#[derive(Debug, ClapArgs)]
pub(super) struct Patience {
    /// How long a device may take for a small case; large ones get more
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub(super) timeout: Duration,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Run {
    #[command(flatten)]
    pub(super) selection: Selection,
    /// Devices to run on, as globs over their keys or their aliases by bus id [default: all that are found]
    #[arg(long, value_name = "GLOB")]
    pub(super) device: Vec<String>,
    /// Run on each GPU once, not through each backend that reaches it
    #[arg(long)]
    pub(super) dedupe: bool,
    /// Don't start unless each device is as said by one of these, and each of these by a device: name=GLOB, pci=ID,
    /// uuid=ID, driver=GLOB, with commas between
    #[arg(long, value_name = "KEY=VALUE,..")]
    pub(super) require: Vec<Requirement>,
    #[command(flatten)]
    pub(super) sources: Sources,
    /// Start no new case after this time; profiles random and ggml-types then draw without end
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(super) time: Option<Duration>,
    /// Cases in flight at once [default: one more than cores, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) jobs: Option<u16>,
    /// Give a worker no more than so many cases, then start a fresh one: for drivers that break with use
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) worker_cases: Option<u64>,
    /// Start no new case after so many unexpected results
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) max_failures: Option<u64>,
    /// A TOML file of known results, each with its reason; may be given several times
    #[arg(long, value_name = "FILE")]
    pub(super) expect: Vec<PathBuf>,
    /// Write run.json and results.jsonl into this folder
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) repeats: Repeats,
    #[command(flatten)]
    pub(super) patience: Patience,
    /// Print the summary as JSON, and nothing else
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Replay {
    /// Case ids
    #[arg(required = true, value_name = "CASE")]
    pub(super) cases: Vec<String>,
    /// The devices, as a glob over their keys or their aliases by bus id
    #[arg(long, value_name = "GLOB")]
    pub(super) device: String,
    #[command(flatten)]
    pub(super) sources: Sources,
    /// Only a failure with this signature counts as bad; another one can't be judged
    #[arg(long, value_name = "SIGNATURE")]
    pub(super) like: Option<String>,
    #[command(flatten)]
    pub(super) repeats: Repeats,
    #[command(flatten)]
    pub(super) patience: Patience,
    /// Print the results as a JSON array
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Mutants {
    /// Mutants: names, their beginnings, or globs over them [default: all]
    #[arg(value_name = "MUTANT")]
    pub(super) filters: Vec<String>,
    /// Devices to put them into, as globs over their keys [default: all that mutants apply to]
    #[arg(long, value_name = "GLOB")]
    pub(super) device: Vec<String>,
    #[command(flatten)]
    pub(super) sources: Sources,
    /// Seed of the drawn cases
    #[arg(long, value_name = "N", default_value_t = Profile::FIXED_SEED)]
    pub(super) seed: u64,
    /// Give a mutant up after so many cases of the full profile
    #[arg(long, value_name = "N", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(super) cases: u64,
    /// Mutants hunted at once [default: one for each core, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) jobs: Option<u16>,
    #[command(flatten)]
    pub(super) patience: Patience,
    /// Print the table as JSON, and nothing else
    #[arg(long)]
    pub(super) json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(365 * 24 * 3600);
    match humantime::parse_duration(text) {
        Ok(time) if time <= MOST => Ok(time),
        Ok(_) => Err("is more than 365d".to_owned()),
        Err(e) => Err(format!("{e}; write for example 90s or 30m")),
    }
}
