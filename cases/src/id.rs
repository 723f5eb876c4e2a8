//! Case ids: `op/params/recipe/version-seed`, one canonical text per case.
//!
//! The grammar here is shared by all ops: a section is `key=value` pairs joined
//! by commas. Which keys there are, their order and their defaults belong to the
//! op, which states them twice, once writing ([`Writer`]) and once reading
//! ([`Reader`]); parsing ends by writing the case again and comparing, so the
//! two cannot drift apart unseen.

use std::fmt;
use std::str::FromStr;

/// What is wrong with the text of a case id: one line, naming the text, the place and the mend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("case id '{id}': {why}")]
pub struct IdError {
    /// The text as given.
    pub id: String,
    /// What is wrong and what to do.
    pub why: String,
}

/// The id version that this crate reads and writes: it freezes defaults, key order and data streams.
pub const VERSION: &str = "v1";

/// Bytes of an id at most: several times those of any that makes sense, and few enough to look at each pair of keys.
const LONGEST: usize = 4096;

/// The three sections and the seed of an id, not yet understood.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) op: &'a str,
    pub(crate) params: &'a str,
    pub(crate) recipe: &'a str,
    pub(crate) seed: u64,
}

impl<'a> Parts<'a> {
    /// Splits an id; errors say what is missing.
    pub(crate) fn split(id: &'a str) -> Result<Self, String> {
        if id.len() > LONGEST {
            return Err(format!("has {} bytes, the longest has {LONGEST}", id.len()));
        }
        let sections: Vec<&str> = id.split('/').collect();
        let [op, params, recipe, tail] = sections[..] else {
            return Err(format!(
                "has {} section(s) between slashes, needs 4: op/params/recipe/{VERSION}-seed",
                sections.len()
            ));
        };
        let Some((version, seed)) = tail.split_once('-') else {
            return Err(format!("ends with '{tail}', needs {VERSION}-seed"));
        };
        if version != VERSION {
            return Err(format!("has version '{version}', this build knows {VERSION}"));
        }
        let seed = u64::from_str_radix(seed, 16)
            .map_err(|_| format!("seed '{seed}' is no hexadecimal number of at most 16 digits"))?;
        Ok(Parts { op, params, recipe, seed })
    }
}

/// Writes one section in the op's fixed key order, leaving defaults out.
#[derive(Default)]
pub struct Writer(String);

impl Writer {
    /// A key that is always written.
    pub fn put(&mut self, key: &str, value: impl fmt::Display) {
        use fmt::Write as _;
        let comma = if self.0.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{comma}{key}={value}");
    }

    /// A key that is left out at its default.
    pub fn put_unless<T: fmt::Display + PartialEq>(&mut self, key: &str, value: T, default: T) {
        if value != default {
            self.put(key, value);
        }
    }

    /// The section's text.
    pub fn finish(self) -> String {
        self.0
    }
}

/// Reads one section: each key is taken once, and [`finish`](Reader::finish) refuses what nobody took.
pub struct Reader<'a> {
    section: &'static str,
    left: Vec<(&'a str, &'a str)>,
    known: Vec<&'static str>,
}

impl<'a> Reader<'a> {
    /// Splits `text` into pairs. `section` names it in errors.
    pub fn new(section: &'static str, text: &'a str) -> Result<Self, String> {
        let mut left = Vec::new();
        for pair in text.split(',') {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("{section}: '{pair}' is no key=value"))?;
            if left.iter().any(|(k, _)| *k == key) {
                return Err(format!("{section}: key '{key}' is given twice"));
            }
            left.push((key, value));
        }
        Ok(Reader { section, left, known: Vec::new() })
    }

    fn take_text(&mut self, key: &'static str) -> Option<&'a str> {
        self.known.push(key);
        let at = self.left.iter().position(|(k, _)| *k == key)?;
        Some(self.left.remove(at).1)
    }

    fn parse<T: FromStr>(&self, key: &str, text: &str) -> Result<T, String>
    where
        T::Err: fmt::Display,
    {
        text.parse().map_err(|e| format!("{}: {key}={text}: {e}", self.section))
    }

    /// A key that must be there.
    pub fn take<T: FromStr>(&mut self, key: &'static str) -> Result<T, String>
    where
        T::Err: fmt::Display,
    {
        let text = self.take_text(key).ok_or_else(|| format!("{}: key '{key}' is missing", self.section))?;
        self.parse(key, text)
    }

    /// A key that may be left out.
    pub fn take_or<T: FromStr>(&mut self, key: &'static str, default: T) -> Result<T, String>
    where
        T::Err: fmt::Display,
    {
        match self.take_text(key) {
            Some(text) => self.parse(key, text),
            None => Ok(default),
        }
    }

    /// Refuses keys that nobody took.
    pub fn finish(self) -> Result<(), String> {
        match self.left.first() {
            None => Ok(()),
            Some((key, _)) => {
                Err(format!("{}: unknown key '{key}'; known here: {}", self.section, self.known.join(", ")))
            }
        }
    }
}

/// Defines an enum whose variants have fixed lower-case words in ids.
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident : $what:literal { $($(#[$vmeta:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        $vis enum $name { $($(#[$vmeta])* $variant,)+ }

        impl $name {
            /// Every variant, in a fixed order.
            pub const ALL: &[$name] = &[$($name::$variant,)+];

            /// The word used in case ids.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(s: &str) -> Result<Self, String> {
                Self::ALL.iter().copied().find(|v| v.word() == s).ok_or_else(|| {
                    let known: Vec<_> = Self::ALL.iter().map(|v| v.word()).collect();
                    format!("is no {}; known: {}", $what, known.join(", "))
                })
            }
        }
    };
}
pub(crate) use words;

impl FromStr for crate::formats::ElemType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Self::from_name(s).ok_or_else(|| "is no element type".to_owned())
    }
}

/// Which dimensions of a view have margins, as the letters of those dimensions: `km` is a view with margins in k and m.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Margins(pub [bool; 4]);

impl Margins {
    /// The letters, given the name of each dimension.
    pub fn letters(self, dims: &str) -> String {
        dims.chars().zip(self.0).filter(|(_, on)| *on).map(|(c, _)| c).collect()
    }

    /// Parses letters that must be in the order of `dims`.
    pub fn parse(letters: &str, dims: &str) -> Result<Self, String> {
        let mut margins = Margins::default();
        for letter in letters.chars() {
            let d = dims.chars().position(|c| c == letter);
            let d = d.ok_or_else(|| format!("view '{letters}': letter '{letter}' is none of '{dims}'"))?;
            margins.0[d] = true;
        }
        Ok(margins)
    }

    /// True if there is no margin at all.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitting_says_what_is_missing() {
        let p = Parts::split("argsort/c=3/data=ties/v1-9f").unwrap();
        assert_eq!((p.op, p.params, p.recipe, p.seed), ("argsort", "c=3", "data=ties", 0x9f));
        for (id, why) in [
            ("argsort/c=3/v1-9f", "3 section(s)"),
            ("argsort/c=3/data=ties/9f", "needs v1-seed"),
            ("argsort/c=3/data=ties/v2-9f", "version 'v2'"),
            ("argsort/c=3/data=ties/v1-xyz", "seed 'xyz'"),
            ("argsort/c=3/data=ties/v1-11112222333344445", "seed"),
            (&"/".repeat(4097), "has 4097 bytes, the longest has 4096"),
        ] {
            let e = Parts::split(id).unwrap_err();
            assert!(e.contains(why), "{id}: {e}");
        }
    }

    #[test]
    fn reader_takes_each_key_once() {
        let mut r = Reader::new("params", "a=1,b=x").unwrap();
        assert_eq!(r.take::<usize>("a"), Ok(1));
        assert_eq!(r.take_or::<usize>("c", 7), Ok(7));
        assert_eq!(r.finish().unwrap_err(), "params: unknown key 'b'; known here: a, c");
        assert!(Reader::new("params", "a=1,a=2").err().unwrap().contains("twice"));
        assert!(Reader::new("params", "a").err().unwrap().contains("no key=value"));
        let mut r = Reader::new("params", "a=-1").unwrap();
        assert!(r.take::<usize>("a").unwrap_err().starts_with("params: a=-1: "));
        assert_eq!(r.take::<usize>("z").unwrap_err(), "params: key 'z' is missing");
    }

    #[test]
    fn margins_are_letters_of_dimensions() {
        let m = Margins::parse("ke", "kme").unwrap();
        assert_eq!(m.0, [true, false, true, false]);
        assert_eq!(m.letters("kme"), "ke");
        assert!(Margins::parse("q", "kme").is_err());
        // Another order parses to the same margins; the canonical comparison of the whole id refuses it.
        assert_eq!(Margins::parse("ek", "kme").unwrap(), m);
    }
}
