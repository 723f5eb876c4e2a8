//! Which build: a folder of ggml's libraries, and the name it goes by in device keys.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::worker::Launch;

/// The folder, in the environment of a worker.
pub const DIR: &str = "CONFORM_GGML_DIR";

/// The name, in the environment of a worker.
pub const NAME: &str = "CONFORM_GGML_NAME";

/// Set in the environment of a worker that is to load no backend but the CPU's.
const CPU_ONLY: &str = "CONFORM_GGML_CPU_ONLY";

/// A folder of libraries and a name, written `[NAME=]DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// Part of the devices' keys. Without one given it is the folder's.
    pub name: String,
    /// Where the libraries lie.
    pub dir: PathBuf,
}

impl Build {
    /// A build that goes by the name of its folder.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Self {
        let dir = dir.into();
        // A relative folder such as `.` has a name only once it is resolved.
        let resolved = dir.canonicalize().unwrap_or_else(|_| dir.clone());
        let name =
            resolved.file_name().map(|n| n.to_string_lossy().chars().map(key_safe).collect()).unwrap_or_default();
        Build { name, dir }
    }

    /// The build that this process was told to drive, if any.
    pub(super) fn from_env() -> Option<Self> {
        let dir = std::env::var_os(DIR)?;
        let build = Build::in_dir(dir);
        Some(match std::env::var(NAME) {
            Ok(name) => Build { name, ..build },
            Err(_) => build,
        })
    }

    /// What a worker of this build must be told.
    #[must_use]
    pub fn tell(&self, launch: Launch) -> Launch {
        // An assertion has ggml start a debugger for a backtrace where there is one, which takes seconds; its text and
        // line are logged all the same.
        launch.env(DIR, &self.dir).env(NAME, &self.name).env("GGML_NO_BACKTRACE", "1")
    }

    /// The same for a worker that loads no backend but the CPU's: where another one dies while it is asked for devices.
    #[must_use]
    pub fn tell_cpu_only(&self, launch: Launch) -> Launch {
        self.tell(launch).env(CPU_ONLY, "1")
    }

    /// True if this process was told so.
    pub(super) fn is_cpu_only() -> bool {
        std::env::var_os(CPU_ONLY).is_some()
    }

    /// What the keys of its devices begin with.
    pub fn prefix(&self) -> String {
        format!("{}-{}", super::BACKEND, self.name)
    }
}

impl FromStr for Build {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, dir) = match text.split_once('=') {
            // A folder may have a `=` in its name, as long as a `/` comes before it.
            Some((name, dir)) if !name.contains('/') => (Some(name), dir),
            _ => (None, text),
        };
        if dir.is_empty() {
            return Err("the folder is missing; write [NAME=]DIR".to_owned());
        }
        let build = Build::in_dir(dir);
        let build = match name {
            Some(name) => Build { name: name.to_owned(), ..build },
            None => build,
        };
        if build.name.is_empty() || build.name.chars().any(|c| key_safe(c) != c) {
            return Err(format!("'{}' is no name for a build; use letters, digits, and . _ -", build.name));
        }
        Ok(build)
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, Path::display(&self.dir))
    }
}

/// The character itself where it can stand in a key, else `_`.
fn key_safe(c: char) -> char {
    if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_folder_or_stand_before_it() {
        let name = |text: &str| text.parse::<Build>().unwrap().name;
        assert_eq!(name("target/ggml/b9842"), "b9842");
        assert_eq!(name("target/ggml/b9842/"), "b9842");
        assert_eq!(name("old=target/ggml/b9842"), "old");
        assert_eq!(name("./a=b/my build"), "my_build");
        assert_eq!("old=/x".parse::<Build>().unwrap().dir, Path::new("/x"));
    }

    #[test]
    fn bad_names_are_refused() {
        for bad in ["", "a=", "a b=/x", "=/x"] {
            assert!(bad.parse::<Build>().is_err(), "{bad}");
        }
    }
}
