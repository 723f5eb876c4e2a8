//! How to start a worker process.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

/// A command that starts a worker; it can be started many times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
}

impl Launch {
    /// The hidden command of a `conform` binary that serves one backend.
    pub fn conform(program: impl Into<OsString>, backend: &str) -> Self {
        Launch { program: program.into(), args: vec!["worker".into(), backend.into()], env: Vec::new() }
    }

    /// A worker written by someone else: a program and its arguments.
    pub fn foreign<S: Into<OsString>>(program: impl Into<OsString>, args: impl IntoIterator<Item = S>) -> Self {
        Launch { program: program.into(), args: args.into_iter().map(Into::into).collect(), env: Vec::new() }
    }

    /// Sets a variable in the worker's environment, beside what it inherits.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// What is started, for messages.
    pub fn program(&self) -> &OsStr {
        &self.program
    }

    /// A command without input, whose output is still to be directed.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().cloned()).stdin(Stdio::null());
        command
    }
}
