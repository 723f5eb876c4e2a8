//! Bugs that somebody reported in public, and which cases and checks show each: `golden/bugs.toml`.
//!
//! The file says of each bug which ops, and what must be true of the keys of an id. A key that an id leaves out has its
//! default: `b`, `r`, `r2` and `r3` are 1, `t` is `u`.

use std::collections::BTreeMap;

use conform_cases::case::OPS;
use conform_cases::judge::CHECKS;
use serde::Deserialize;

/// The file.
const TEXT: &str = include_str!("../../golden/bugs.toml");

/// What stands for a worker that dies.
const CRASH: &str = "crash";

/// A bug of somebody's.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bug {
    /// Its name here: the class and a number.
    pub id: String,
    /// Where it was reported.
    pub from: String,
    /// Ops whose cases may show it.
    #[serde(default)]
    pub ops: Vec<String>,
    /// Conditions on their keys, all of which must be met.
    #[serde(default)]
    pub when: Vec<String>,
    /// The checks by which it shows, any of them.
    #[serde(default)]
    pub checks: Vec<String>,
    /// Why no case here can show it.
    pub reason: Option<String>,
}

/// All of them, in the order of the file. The error is one line.
pub fn all() -> Result<Vec<Bug>, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        bug: Vec<Bug>,
    }
    let file: File = toml::from_str(TEXT).map_err(|e| format!("golden/bugs.toml: {}", e.message()))?;
    file.bug.iter().try_for_each(Bug::check)?;
    Ok(file.bug)
}

/// The bug of this name.
pub fn find(id: &str) -> Result<Bug, String> {
    let mut bugs = all()?;
    match bugs.iter().position(|bug| bug.id == id) {
        Some(at) => Ok(bugs.swap_remove(at)),
        None => {
            let known: Vec<&str> = bugs.iter().map(|bug| &*bug.id).collect();
            Err(format!("no bug is called '{id}'; known: {}", known.join(", ")))
        }
    }
}

impl Bug {
    fn check(&self) -> Result<(), String> {
        let says = |why: String| Err(format!("golden/bugs.toml: {}: {why}", self.id));
        if self.reason.is_some() != self.ops.is_empty() || self.ops.is_empty() != self.checks.is_empty() {
            return says("has either ops and checks or a reason".to_owned());
        }
        if let Some(op) = self.ops.iter().find(|op| OPS.iter().all(|known| known.name != **op)) {
            return says(format!("there is no op '{op}'"));
        }
        if let Some(check) = self.checks.iter().find(|c| **c != CRASH && !CHECKS.contains(&c.as_str())) {
            return says(format!("there is no check '{check}'"));
        }
        self.when.iter().try_for_each(|text| Condition::parse(text).map(drop)).or_else(says)
    }

    /// Whether the case of this id may show it.
    pub fn is_shown_by(&self, id: &str) -> bool {
        let mut sections = id.split('/');
        let op = sections.next().unwrap_or_default();
        let pairs = sections.by_ref().take(2).flat_map(|section| section.split(','));
        let keys: BTreeMap<&str, &str> = pairs.filter_map(|pair| pair.split_once('=')).collect();
        let is_met = |text: &String| Condition::parse(text).is_ok_and(|condition| condition.holds(&Keys(&keys)));
        self.ops.iter().any(|known| known == op) && self.when.iter().all(is_met)
    }
}

/// The keys of an id.
struct Keys<'a>(&'a BTreeMap<&'a str, &'a str>);

impl Keys<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        match (self.0.get(key), key) {
            (Some(value), _) => Some(value),
            (None, "b" | "r" | "r2" | "r3") => Some("1"),
            (None, "t") => self.0.get("u").copied(),
            (None, _) => None,
        }
    }

    /// A number, or a product of keys.
    fn number(&self, product: &str) -> Option<u64> {
        let factor = |part: &str| part.parse().ok().or_else(|| self.text(part)?.parse().ok());
        product.split('*').try_fold(1u64, |n, part| n.checked_mul(factor(part)?))
    }
}

/// What must be true of the keys.
#[derive(Debug, PartialEq, Eq)]
enum Condition<'a> {
    /// The id has the key.
    Has(&'a str),
    /// It has one of these values.
    Is(&'a str, Vec<&'a str>),
    /// It is no multiple.
    Rest(&'a str, u64),
    /// Not less, not more, less, more.
    Compare(&'a str, &'static str, &'a str),
}

impl<'a> Condition<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        let is_key = |key: &str| {
            !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '*')
        };
        let known = |key: &'a str| {
            let bad = || format!("'{text}' is no condition: a key, or key=value|value, key%number, key>=number");
            is_key(key).then_some(key).ok_or_else(bad)
        };
        for order in [">=", "<=", ">", "<"] {
            if let Some((left, right)) = text.split_once(order) {
                return Ok(Condition::Compare(known(left)?, order, known(right)?));
            }
        }
        if let Some((key, number)) = text.split_once('%') {
            let divisor = number.parse().ok().filter(|n| *n > 0);
            return Ok(Condition::Rest(known(key)?, divisor.ok_or_else(|| format!("'{text}': % needs a number"))?));
        }
        match text.split_once('=') {
            Some((key, values)) => Ok(Condition::Is(known(key)?, values.split('|').collect())),
            None => Ok(Condition::Has(known(text)?)),
        }
    }

    fn holds(&self, keys: &Keys<'_>) -> bool {
        match self {
            Condition::Has(key) => keys.0.contains_key(key),
            Condition::Is(key, values) => keys.text(key).is_some_and(|value| values.contains(&value)),
            Condition::Rest(key, divisor) => keys.number(key).is_some_and(|n| n % divisor != 0),
            Condition::Compare(left, order, right) => {
                let (Some(left), Some(right)) = (keys.number(left), keys.number(right)) else { return false };
                match *order {
                    ">=" => left >= right,
                    "<=" => left <= right,
                    ">" => left > right,
                    _ => left < right,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::profile::Profile;

    #[test]
    fn conditions() {
        let id = "mul_mat_id/w=f16,x=f32,e=4,u=2,m=1,n=9,k=33,wv=k/route=one,data=wide/v1-1";
        let holds = |when: &str| {
            let bug = Bug {
                id: String::new(),
                from: String::new(),
                ops: vec!["mul_mat_id".to_owned()],
                when: vec![when.to_owned()],
                checks: vec![],
                reason: None,
            };
            bug.is_shown_by(id)
        };
        for yes in ["wv", "w=f16|f32", "route=one", "k%32", "n>=9", "n*u>17", "t=2", "b=1", "t<=u", "u<e", "n*u%4"] {
            assert!(holds(yes), "{yes}");
        }
        for no in ["xv", "w=f32", "k%11", "n>9", "n*u>=19", "t>u", "q>=1", "n*u%6"] {
            assert!(!holds(no), "{no}");
        }
        for bad in ["", "K=1", "k%x", "k%0"] {
            assert!(Condition::parse(bad).is_err(), "{bad}");
        }
    }

    /// Every bug of both classes is there, and those that can be shown are, by a case of the full profile.
    #[test]
    fn every_bug_has_cases_or_a_reason() {
        let bugs = all().unwrap();
        let of_class = |class: char| bugs.iter().filter(|bug| bug.id.starts_with(class)).count();
        assert_eq!((of_class('A'), of_class('B')), (34, 19));
        let cases = Profile::Full.cases(Profile::FIXED_SEED, Profile::Full.drawn());
        let ids: Vec<String> = cases.map(|case| case.id()).collect();
        for bug in bugs.iter().filter(|bug| bug.reason.is_none()) {
            assert!(ids.iter().any(|id| bug.is_shown_by(id)), "no case shows {}", bug.id);
        }
    }

    #[test]
    fn an_unknown_bug_is_named_with_those_that_are_known() {
        let why = find("A99").unwrap_err();
        assert!(why.starts_with("no bug is called 'A99'; known: A1, A2, "), "{why}");
        assert!(find("A44").unwrap().reason.is_some());
    }
}
