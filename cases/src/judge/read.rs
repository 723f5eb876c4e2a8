//! Checks and sizes of errors, read back from JSON.

use serde::{Deserialize, Deserializer};

use super::{Check, Failure, Status};

/// A check as its JSON has it: all fields side by side. Read field by field, so that nothing unknown has to be kept
/// until it is clear what the others say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    name: String,
    status: Word,
    what: Option<String>,
    worst: Option<String>,
    pattern: Option<String>,
    why: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Passed,
    Failed,
    NotPossible,
}

impl TryFrom<Written> for Check {
    type Error = String;

    fn try_from(w: Written) -> Result<Self, String> {
        let status = match (w.status, w.what, w.worst, w.pattern, w.why) {
            (Word::Passed, None, None, None, None) => Status::Passed,
            (Word::Failed, Some(what), worst, pattern, None) => Status::Failed(Failure { what, worst, pattern }),
            (Word::NotPossible, None, None, None, Some(why)) => Status::NotPossible { why },
            (Word::Failed, None, ..) => return Err(format!("check '{}' failed: field 'what' is missing", w.name)),
            (Word::NotPossible, .., None) => {
                return Err(format!("check '{}' was not possible: field 'why' is missing", w.name));
            }
            (word, ..) => return Err(format!("check '{}' has fields that do not go with {word:?}", w.name)),
        };
        Ok(Check { name: w.name, status })
    }
}

/// JSON has no infinity and is given a null instead. An error where none is allowed makes an infinite ratio.
pub(super) fn number_or_infinite<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Option::deserialize(from).map(|number| number.unwrap_or(f64::INFINITY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Metrics;

    #[test]
    fn checks_are_read_as_they_were_written() {
        let failure = Failure { what: "w".to_owned(), worst: None, pattern: Some("p".to_owned()) };
        for check in [Check::passed("values"), Check::failed("exact", failure), Check::not_possible("noise", "few")] {
            let text = serde_json::to_string(&check).unwrap();
            assert_eq!(serde_json::from_str::<Check>(&text).unwrap(), check);
        }
        let why = |text: &str| serde_json::from_str::<Check>(text).unwrap_err().to_string();
        for (text, want) in [
            (r#"{"name":"a","status":"failed"}"#, "check 'a' failed: field 'what' is missing"),
            (r#"{"name":"a","status":"not_possible"}"#, "check 'a' was not possible: field 'why' is missing"),
            (r#"{"name":"a","status":"passed","why":"b"}"#, "check 'a' has fields that do not go with Passed"),
            (r#"{"name":"a","status":"passed","more":[1]}"#, "unknown field `more`"),
            (r#"{"name":"a","status":"great"}"#, "unknown variant `great`"),
        ] {
            assert!(why(text).contains(want), "{text}: {}", why(text));
        }
    }

    #[test]
    fn sizes_of_errors_are_read_as_they_were_written() {
        // The one has more digits than a parser in a hurry looks at, the other is no JSON number.
        for ratio in [1.665_719_600_283_150_2e-15, f64::INFINITY] {
            let metrics = Metrics { ratio, max_rel: ratio, ..Metrics::default() };
            let text = serde_json::to_string(&metrics).unwrap();
            assert_eq!(serde_json::from_str::<Metrics>(&text).unwrap(), metrics);
            assert!(serde_json::from_str::<Metrics>(&text.replace("\"nmse\":0.0,", "")).is_err());
        }
    }
}
