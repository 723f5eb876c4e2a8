//! Selecting cases by id and devices by key.

use glob::Pattern;

/// Selects case ids: by glob where the text has `*`, `?` or `[`, else by prefix.
#[derive(Clone, Debug)]
pub struct Filter {
    text: String,
    glob: Option<Pattern>,
}

impl Filter {
    /// Parses a filter; the error is one line.
    pub fn new(text: &str) -> Result<Self, String> {
        let glob = if text.contains(['*', '?', '[']) { Some(pattern(text)?) } else { None };
        Ok(Filter { text: text.to_owned(), glob })
    }

    /// Whether an id is selected.
    pub fn matches(&self, id: &str) -> bool {
        match &self.glob {
            Some(glob) => glob.matches(id),
            None => id.starts_with(&self.text),
        }
    }

    /// The text as given.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// A glob over device keys.
pub fn device_glob(text: &str) -> Result<Pattern, String> {
    pattern(text)
}

fn pattern(text: &str) -> Result<Pattern, String> {
    Pattern::new(text).map_err(|e| format!("'{text}' is no glob: {} at character {}", e.msg, e.pos + 1))
}

/// One of several equal parts of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which part, from 1.
    pub number: u64,
    /// How many parts.
    pub of: u64,
}

impl Shard {
    /// Whether an id belongs to this part. Every part samples the whole space, and an id stays in its part
    /// whatever else is selected.
    pub fn holds(self, id: &str) -> bool {
        spread(id) % self.of == self.number - 1
    }
}

/// A hash of an id, folded, that is the same everywhere and always.
pub(crate) fn spread(id: &str) -> u64 {
    let hash = fnv1a(id.as_bytes());
    hash ^ (hash >> 32)
}

/// FNV-1a, 64 bits.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let parsed = s.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match parsed {
            Some((number, of)) if (1..=of).contains(&number) => Ok(Shard { number, of }),
            _ => Err(format!("'{s}' is no K/N with K from 1 to N")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_prefixes_or_globs() {
        let id = "mul_mat_id/w=mxfp4,x=f32,e=8/route=skew,data=wide/v1-1";
        for (text, selects) in [
            ("", true),
            ("mul_mat_id/w=mxfp4", true),
            ("w=mxfp4", false),
            ("*w=mxfp4*", true),
            ("*/route=skew,*", true),
            ("*route=one*", false),
            ("mul_mat_id", true),
            ("argsort", false),
        ] {
            assert_eq!(Filter::new(text).unwrap().matches(id), selects, "{text}");
        }
        assert!(Filter::new("a[").unwrap_err().contains("'a[' is no glob"));
    }

    #[test]
    fn shards_partition() {
        let ids: Vec<String> = (0..3000).map(|i| format!("argsort/c={i}/data=ties/v1-1")).collect();
        let shards: Vec<Shard> = (1..=3).map(|k| format!("{k}/3").parse().unwrap()).collect();
        for id in &ids {
            assert_eq!(shards.iter().filter(|s| s.holds(id)).count(), 1);
        }
        for s in shards {
            let n = ids.iter().filter(|id| s.holds(id)).count();
            assert!((800..1200).contains(&n), "{n}");
        }
        for bad in ["0/3", "4/3", "1", "a/b", "1/0", ""] {
            assert!(bad.parse::<Shard>().is_err(), "{bad}");
        }
    }
}
