//! Reading the files of a run again: `run.json` and `results.jsonl`.
//!
//! A last line without its end is what a run left that was killed while it wrote: it is dropped. Any other line that is
//! no result is an error that names it.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::record::SCHEMA;
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
        return Err(format!("is of version {}, this conform reads version {SCHEMA}", version.schema));
    }
    serde_json::from_slice(bytes).map_err(|e| format!("is no head of a run: {e}"))
}

/// The results in the bytes of a file, one after the other. An error is one line and names the line of the file.
pub fn results(bytes: &[u8]) -> impl Iterator<Item = Result<CaseResult, String>> + '_ {
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(&[][..], |end| &bytes[..end]);
    let lines = whole.split(|b| *b == b'\n').enumerate().filter(|_| !whole.is_empty());
    lines.map(|(i, line)| serde_json::from_slice(line).map_err(|e| format!("line {}: {e}", i + 1)))
}

/// Reads a run's folder: its head, and every result given to `each` in order. The error is one line.
pub fn folder(dir: &Path, mut each: impl FnMut(CaseResult)) -> Result<Head, String> {
    let read = |name: &str| {
        let path = dir.join(name);
        let bytes =
            fs::read(&path).map_err(|e| format!("cannot read {}: {e}; name a folder of --out", path.display()))?;
        Ok::<_, String>((path, bytes))
    };
    let (path, bytes) = read("run.json")?;
    let head = head(&bytes).map_err(|why| format!("{}: {why}", path.display()))?;
    let (path, bytes) = read("results.jsonl")?;
    for result in results(&bytes) {
        each(result.map_err(|why| format!("{}: {why}", path.display()))?);
    }
    Ok(head)
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
        assert!(why.starts_with("line 2: EOF while parsing"), "{why}");
    }

    #[test]
    fn heads_of_other_versions_are_refused() {
        assert_eq!(head(br#"{"schema":2}"#).unwrap_err(), "is of version 2, this conform reads version 1");
        assert!(head(br#"{"schema":1}"#).unwrap_err().contains("missing field `conform`"));
        assert!(head(b"").unwrap_err().starts_with("is no head of a run: EOF"));
    }
}
