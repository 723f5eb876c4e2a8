//! Expectation files: TOML with a table `[[expect]]` for each known result.
//!
//! Entries are taken apart by hand, so that an error says which entry and which
//! key it is about.

use std::path::Path;

use conform_cases::judge::CHECKS;
use toml::{Table, Value};

use super::Expectation;
use crate::result::Verdict;
use crate::select::{Filter, device_glob};

/// Reads a file; the error is one line.
pub fn read(path: &Path) -> Result<Vec<Expectation>, String> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {name}: {e}"))?;
    parse(&name, &text)
}

fn parse(name: &str, text: &str) -> Result<Vec<Expectation>, String> {
    let mut file: Table = text.parse().map_err(|e| syntax(name, text, &e))?;
    let entries = match file.remove("expect") {
        None => Vec::new(),
        Some(Value::Array(entries)) => entries,
        Some(_) => return Err(format!("{name}: 'expect' is no list of tables; write [[expect]]")),
    };
    if let Some(key) = file.keys().next() {
        return Err(format!("{name}: unknown key '{key}'; known here: expect"));
    }
    let numbered = entries.into_iter().enumerate().map(|(i, entry)| (format!("{name}, entry {}", i + 1), entry));
    numbered.map(|(place, entry)| expectation(&place, entry).map_err(|why| format!("{place}: {why}"))).collect()
}

/// An error of the TOML itself, in one line and with the number of the line where it is.
fn syntax(name: &str, text: &str, e: &toml::de::Error) -> String {
    let line = e.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count() + 1);
    let line = line.map(|n| format!(", line {n}")).unwrap_or_default();
    let what: Vec<&str> = e.message().lines().map(str::trim).collect();
    format!("{name}{line}: {}", what.join("; "))
}

fn expectation(place: &str, entry: Value) -> Result<Expectation, String> {
    let Value::Table(mut left) = entry else { return Err("is no table; write [[expect]]".to_owned()) };
    const KNOWN: &str = "device, case, verdict, check, log, reason, link";
    let mut take_list = |key: &str| left.remove(key).map(|value| strings(key, value)).transpose();
    let (cases, verdicts) = (take_list("case")?, take_list("verdict")?);
    let [checks, logs] = ["check", "log"].map(|key| take_list(key).map(Option::unwrap_or_default));
    let (checks, logs) = (checks?, logs?);
    if let Some(unknown) = checks.iter().find(|name| !CHECKS.contains(&name.as_str())) {
        return Err(format!("key 'check': there is no check '{unknown}'; known: {}", CHECKS.join(", ")));
    }
    let mut take = |key: &str| left.remove(key).map(|value| string(key, value)).transpose();
    let missing = |key: &'static str| move || format!("key '{key}' is missing");
    let device = take("device")?.ok_or_else(missing("device"))?;
    let cases = cases.ok_or_else(missing("case"))?;
    let verdicts = verdicts.ok_or_else(missing("verdict"))?;
    let verdicts = verdicts.iter().map(|word| verdict(word)).collect::<Result<Vec<Verdict>, _>>()?;
    let reason = take("reason")?.ok_or_else(missing("reason"))?;
    let link = take("link")?;
    if let Some(key) = left.keys().next() {
        return Err(format!("unknown key '{key}'; known here: {KNOWN}"));
    }
    let words = || verdicts.iter().map(|v| v.word()).collect::<Vec<_>>().join("', '");
    let has = |some: [Verdict; 2]| verdicts.iter().any(|v| some.contains(v));
    if !checks.is_empty() && !has([Verdict::Fail, Verdict::Flaky]) {
        return Err(format!("key 'check' has no meaning where the verdict is '{}': no check fails there", words()));
    }
    if !logs.is_empty() && !has([Verdict::Crash, Verdict::Timeout]) {
        return Err(format!("key 'log' has no meaning where the verdict is '{}': no worker dies there", words()));
    }
    Ok(Expectation {
        place: place.to_owned(),
        device: device_glob(&device).map_err(|e| format!("key 'device': {e}"))?,
        cases: cases
            .iter()
            .map(|case| Filter::new(case))
            .collect::<Result<_, _>>()
            .map_err(|e| format!("key 'case': {e}"))?,
        verdicts,
        checks,
        logs,
        reason,
        link,
    })
}

/// The texts of a key that may have several.
fn strings(key: &str, value: Value) -> Result<Vec<String>, String> {
    match value {
        Value::Array(texts) if texts.is_empty() => Err(format!("key '{key}' is an empty list; name at least one")),
        Value::Array(texts) => texts.into_iter().map(|text| string(key, text)).collect(),
        text => Ok(vec![string(key, text)?]),
    }
}

/// The text of a key.
fn string(key: &str, value: Value) -> Result<String, String> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Ok(text),
        Value::String(_) => Err(format!("key '{key}' is empty")),
        other => Err(format!("key '{key}' is of type {}, not a string", other.type_str())),
    }
}

/// A verdict that can be expected.
fn verdict(word: &str) -> Result<Verdict, String> {
    let can_be_expected = |v: &Verdict| *v != Verdict::Wedged;
    match Verdict::ALL.into_iter().find(|v| v.word() == word) {
        Some(Verdict::Wedged) => Err("key 'verdict': a wedged device needs a hand and can't be expected".to_owned()),
        Some(verdict) => Ok(verdict),
        None => {
            let known: Vec<&str> = Verdict::ALL.iter().filter(|v| can_be_expected(v)).map(|v| v.word()).collect();
            Err(format!("key 'verdict': '{word}' is no verdict; known: {}", known.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_in_order() {
        let text = r#"
            # A comment.
            [[expect]]
            device = "gpu-*"
            case = "argsort/c=3"
            verdict = "fail"
            check = "order"
            reason = "sorts the wrong way"
            link = "https://example.org/1"

            [[expect]]
            device = "cpu"
            case = "*w=q8_0*"
            verdict = "crash"
            log = "SIGFPE"
            reason = "divides by zero"

            [[expect]]
            device = "cpu"
            case = ["mul_mat_id/w=f16", "*w=bf16*"]
            verdict = ["pass", "fail"]
            check = ["values", "scale"]
            reason = "a factor is missing"
        "#;
        let read = parse("e.toml", text).unwrap();
        assert_eq!(read.len(), 3);
        assert_eq!((&*read[0].place, read[0].outcome()), ("e.toml, entry 1", "fail of 'order'".to_owned()));
        assert_eq!(read[0].link.as_deref(), Some("https://example.org/1"));
        assert_eq!(
            (&*read[1].reason, &read[1].verdicts[..], read[1].checks.len()),
            ("divides by zero", &[Verdict::Crash][..], 0)
        );
        assert_eq!(read[1].logs, ["SIGFPE"]);
        assert_eq!(read[2].outcome(), "pass or fail of 'values', 'scale'");
        assert!(read[2].cases.iter().map(Filter::text).eq(["mul_mat_id/w=f16", "*w=bf16*"]));
        assert!(parse("e.toml", "# nothing yet\n").unwrap().is_empty());
    }

    #[test]
    fn mistakes_name_file_entry_and_key() {
        const GOOD: &str = "[[expect]]\ndevice = 'a'\ncase = 'b'\nverdict = 'fail'\nreason = 'c'\n";
        let why = |text: &str| parse("e.toml", text).unwrap_err();
        assert!(parse("e.toml", GOOD).is_ok());
        for (entry, want) in [
            ("reason = 1", "e.toml, entry 2: key 'device' is missing"),
            ("device = 'a'\ncase = 'b'\nverdict = 'fail'", "e.toml, entry 2: key 'reason' is missing"),
            ("device = 1", "e.toml, entry 2: key 'device' is of type integer, not a string"),
            ("case = []", "e.toml, entry 2: key 'case' is an empty list; name at least one"),
            ("case = ['a', '']", "e.toml, entry 2: key 'case' is empty"),
            ("check = 1", "e.toml, entry 2: key 'check' is of type integer, not a string"),
            ("check = []", "e.toml, entry 2: key 'check' is an empty list; name at least one"),
            ("check = ['order', 1]", "e.toml, entry 2: key 'check' is of type integer, not a string"),
            ("device = ' '", "e.toml, entry 2: key 'device' is empty"),
            (
                "device = 'a'\ncase = 'b'\nverdict = 'bad'",
                "e.toml, entry 2: key 'verdict': 'bad' is no verdict; known: pass, fail, inconclusive, unsupported, crash, timeout, flaky",
            ),
            (
                "device = 'a'\ncase = 'b'\nverdict = 'wedged'",
                "e.toml, entry 2: key 'verdict': a wedged device needs a hand and can't be expected",
            ),
            (
                "device = 'a'\ncase = 'b'\nverdict = 'crash'\ncheck = 'values'\nreason = 'd'",
                "e.toml, entry 2: key 'check' has no meaning where the verdict is 'crash': no check fails there",
            ),
            (
                "device = 'a'\ncase = 'b'\nverdict = 'fail'\ncheck = 'vlaues'\nreason = 'd'",
                &format!("e.toml, entry 2: key 'check': there is no check 'vlaues'; known: {}", CHECKS.join(", ")),
            ),
            (
                "device = 'a'\ncase = 'b'\nverdict = 'fail'\nreason = 'c'\nchecks = 'd'",
                "e.toml, entry 2: unknown key 'checks'; known here: device, case, verdict, check, log, reason, link",
            ),
            (
                "device = 'a'\ncase = 'b'\nverdict = ['pass', 'fail']\nlog = 'c'\nreason = 'd'",
                "e.toml, entry 2: key 'log' has no meaning where the verdict is 'pass', 'fail': no worker dies there",
            ),
        ] {
            assert_eq!(why(&format!("{GOOD}[[expect]]\n{entry}\n")), want);
        }
        assert!(why(&GOOD.replace("'a'", "'a['")).starts_with("e.toml, entry 1: key 'device': 'a[' is no glob"));
        assert!(why(&GOOD.replace("'b'", "'*['")).starts_with("e.toml, entry 1: key 'case': '*[' is no glob"));
        assert_eq!(why("[[expected]]\n"), "e.toml: unknown key 'expected'; known here: expect");
        assert_eq!(why("expect = 3\n"), "e.toml: 'expect' is no list of tables; write [[expect]]");
        assert_eq!(why("expect = [3]\n"), "e.toml, entry 1: is no table; write [[expect]]");
        let broken = why(&format!("{GOOD}device = \n"));
        assert!(broken.starts_with("e.toml, line 6: ") && !broken.contains('\n'), "{broken}");
        assert!(read(Path::new("/no/such/file")).unwrap_err().starts_with("cannot read /no/such/file: "));
    }
}
