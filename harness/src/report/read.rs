//! Reading the files of a run again: `run.json` and `results.jsonl`.
//!
//! A last line without its end is what a run left that was killed while it wrote: it is dropped. Any other line that is
//! no result is an error that names it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::record::SCHEMA;
use crate::expect::Recorded;
use crate::result::CaseResult;

/// What `run.json` says, as far as it is needed to show a run again.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Head {
    /// Version of the files.
    pub schema: u32,
    /// Version of conform.
    pub conform: String,
    /// Name of the profile.
    pub profile: String,
    /// Seed of drawn cases.
    pub seed: u64,
    /// Devices that were judged.
    pub devices: Vec<HeadDevice>,
    /// Known results.
    #[serde(default)]
    pub expectations: Vec<Recorded>,
}

/// A device of a run.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct HeadDevice {
    /// Its key.
    pub key: String,
    /// Its own name for itself.
    pub name: String,
    /// Name and version of its driver.
    pub driver: String,
}

/// The head of a run out of the bytes of its file. The error is one line.
pub fn head(bytes: &[u8]) -> Result<Head, String> {
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    // The version first: a file of another one may have anything else.
    let version: Version = serde_json::from_slice(bytes).map_err(|e| format!("is no head of a run: {e}"))?;
    if version.schema != SCHEMA {
        let version = version.schema;
        return Err(format!(
            "is of version {version}, this conform reads version {SCHEMA}; use the conform that wrote it"
        ));
    }
    serde_json::from_slice(bytes).map_err(|e| format!("is no head of a run: {e}"))
}

/// The results in the bytes of a file, one after the other. An error is one line and names the line of the file.
pub fn results(bytes: &[u8]) -> impl Iterator<Item = Result<CaseResult, String>> + '_ {
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(&[][..], |end| &bytes[..end]);
    let lines = whole.split(|b| *b == b'\n').enumerate().filter(|_| !whole.is_empty());
    lines.map(|(i, line)| serde_json::from_slice(line).map_err(|e| bad_line(i + 1, &e)))
}

/// What is wrong with a line, where, and what to do.
fn bad_line(line: usize, e: &serde_json::Error) -> String {
    // The parser counts lines as well, and had only this one.
    let (text, place) = (e.to_string(), format!(" at line {} column {}", e.line(), e.column()));
    let what = text.strip_suffix(&place).unwrap_or(&text);
    format!(
        "line {line}, column {}: {what}; remove the line, or use the conform that wrote it if that was another",
        e.column()
    )
}

/// The files of a run, of which the results have yet to be looked at.
pub struct Folder {
    /// The head.
    pub head: Head,
    path: PathBuf,
    results: Vec<u8>,
}

impl Folder {
    /// Reads a run's folder. The error is one line.
    pub fn read(dir: &Path) -> Result<Self, String> {
        let read = |name: &str| {
            let path = dir.join(name);
            let bytes =
                fs::read(&path).map_err(|e| format!("cannot read {}: {e}; name a folder of --out", path.display()))?;
            Ok::<_, String>((path, bytes))
        };
        let (path, bytes) = read("run.json")?;
        let head = head(&bytes).map_err(|why| format!("{}: {why}", path.display()))?;
        let (path, results) = read("results.jsonl")?;
        Ok(Folder { head, path, results })
    }

    /// The results in order. An error is one line and names file and line.
    pub fn results(&self) -> impl Iterator<Item = Result<CaseResult, String>> + '_ {
        results(&self.results).map(|r| r.map_err(|why| format!("{}: {why}", self.path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Verdict;

    fn line(case: &str) -> String {
        serde_json::to_string(&CaseResult::bare(case, "cpu", Verdict::Pass, None)).unwrap() + "\n"
    }

    #[test]
    fn a_torn_last_line_is_dropped() {
        let text = line("a/b/c/v1-1") + &line("a/b/c/v1-2");
        let read = |bytes: &str| results(bytes.as_bytes()).map(|r| r.unwrap().case).collect::<Vec<_>>();
        assert_eq!(read(&text), ["a/b/c/v1-1", "a/b/c/v1-2"]);
        assert_eq!(read(&text[..text.len() - 1]), ["a/b/c/v1-1"]);
        assert_eq!(read(&text[..10]), [""; 0]);
        assert_eq!(read(""), [""; 0]);
    }

    #[test]
    fn any_other_line_is_named() {
        let text = line("a/b/c/v1-1") + "\n" + &line("a/b/c/v1-2");
        let why = results(text.as_bytes()).find_map(Result::err).unwrap();
        assert_eq!(
            why,
            "line 2, column 0: EOF while parsing a value; remove the line, or use the conform that wrote it if that was \
             another"
        );
    }

    #[test]
    fn heads_of_other_versions_are_refused() {
        let why = head(br#"{"schema":2}"#).unwrap_err();
        assert_eq!(why, "is of version 2, this conform reads version 1; use the conform that wrote it");
        assert!(head(br#"{"schema":1}"#).unwrap_err().contains("missing field `conform`"));
        assert!(head(b"").unwrap_err().starts_with("is no head of a run: EOF"));
    }
}
