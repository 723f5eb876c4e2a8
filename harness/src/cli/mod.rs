//! The command line: one file a command.

mod args;
mod choose;
mod devices;
mod list;
mod mutants;
mod probe;
mod replay;
mod report;
mod run;
mod show;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Args, Command};

use crate::report::note;

/// How a command ended, as an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Everything as expected.
    Good,
    /// An unexpected result, or a device asked for by name that judged nothing.
    Unexpected,
    /// A usage or configuration error.
    Usage,
    /// A device is wedged.
    Wedged,
    /// `replay`: can't be judged here.
    Untestable,
    /// `replay`: a usage error, apart from codes that `git bisect run` takes for bad.
    ReplayUsage,
    /// `replay`: wedged, so that `git bisect run` stops instead of blaming a commit.
    ReplayWedged,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(match exit {
            Exit::Good => 0,
            Exit::Unexpected => 1,
            Exit::Usage => 2,
            Exit::Wedged => 3,
            Exit::Untestable => 125,
            Exit::ReplayUsage => 129,
            Exit::ReplayWedged => 131,
        })
    }
}

/// A usage or configuration error: one line.
pub type Outcome = Result<Exit, String>;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let raw: Vec<OsString> = std::env::args_os().collect();
    // The worker is no command for people, and must start without parsing anything else.
    if let [_, command, backend] = &raw[..]
        && command == "worker"
    {
        return crate::worker::serve(&backend.to_string_lossy());
    }
    let is_replay = raw.get(1).is_some_and(|c| c == "replay");
    let usage = if is_replay { Exit::ReplayUsage } else { Exit::Usage };
    let args = match Args::try_parse_from(&raw) {
        Ok(args) => args,
        Err(e) => {
            let asked = matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            if asked || e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                // Nothing can be done about a closed terminal.
                let _ = e.print();
            } else {
                note(&format!("conform: {}", one_line(&e.to_string())));
            }
            return if asked { Exit::Good.into() } else { usage.into() };
        }
    };
    let outcome = match args.command {
        Command::Devices(a) if a.probe => probe::run(&a),
        Command::Devices(a) => devices::devices(&a),
        Command::List(a) => list::list(&a),
        Command::Show(a) => show::show(&a),
        Command::Run(a) => run::run(&a),
        Command::Replay(a) => replay::replay(&a),
        Command::Mutants(a) => mutants::mutants(&a),
        Command::Report(a) => report::report(&a),
    };
    match outcome {
        Ok(exit) => exit.into(),
        Err(why) => {
            note(&format!("conform: {why}"));
            usage.into()
        }
    }
}

/// What is wrong with a command line, and the tip, out of the paragraphs that clap makes of it.
fn one_line(error: &str) -> String {
    let paragraphs = error.split("\n\n").map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
    let said =
        paragraphs.filter(|p| !p.is_empty() && !p.starts_with("Usage:") && !p.starts_with("For more information"));
    let said: Vec<String> = said.collect();
    format!("{}; --help lists what there is", said.join("; ").trim_start_matches("error: "))
}

/// Writes results to stdout. A reader that has gone away (`conform list | head`) wants no more and is no error.
fn say(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("cannot write to stdout: {e}")),
        _ => Ok(()),
    }
}

/// Writes JSON to stdout.
fn say_json(value: &impl serde::Serialize) -> Result<(), String> {
    let text = serde_json::to_string_pretty(value).map_err(|e| format!("cannot write JSON: {e}"))?;
    say(&(text + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_command_lines_are_told_in_one_line() {
        for (line, want) in [
            ("conform run --jbos 3", "unexpected argument '--jbos' found; tip: a similar argument exists: '--jobs'"),
            ("conform rnu", "unrecognized subcommand 'rnu'"),
            ("conform replay", "the following required arguments were not provided: --device <GLOB> <CASE>..."),
            ("conform run --jobs x", "invalid value 'x' for '--jobs <N>': invalid digit found in string"),
        ] {
            let Err(e) = Args::try_parse_from(line.split(' ')) else { panic!("{line}") };
            assert_eq!(one_line(&e.to_string()), format!("{want}; --help lists what there is"));
        }
    }
}
