//! What a device that watches every access of its kernels has seen them do.

use serde::{Deserialize, Serialize};

use super::{Capabilities, Check, Failure};

/// What a device complained of while a plan was loaded: an interpreter of kernels sees accesses that spoil nothing yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Complaints {
    /// How many there are.
    pub count: usize,
    /// The first of them in the device's own words: what, then where, a line each.
    pub first: Vec<String>,
}

impl Complaints {
    /// Lines of a complaint that are told at most.
    const MOST: usize = 12;

    /// Reads what was written: complaints begin at the left, after an empty line, and what belongs to one is indented.
    pub fn read(text: &str) -> Self {
        let mut complaints = Complaints::default();
        let mut is_new = true;
        for line in text.lines() {
            let is_headline = !line.starts_with(char::is_whitespace) && !line.is_empty();
            complaints.count += usize::from(is_headline && is_new);
            is_new = !is_headline;
            if complaints.count <= 1 && !line.trim().is_empty() && complaints.first.len() < Self::MOST {
                complaints.first.push(line.trim().to_owned());
            }
        }
        if complaints.count == 0 && !complaints.first.is_empty() {
            // In no form that is known here, and still something.
            complaints.count = 1;
        }
        complaints
    }
}

/// There may be nothing to complain of; `None` where nobody watches.
pub fn accesses_check(device: &Capabilities, complaints: Option<&Complaints>) -> Option<Check> {
    const NAME: &str = "accesses";
    if !device.watched {
        return None;
    }
    let Some(Complaints { count, first }) = complaints else {
        let what = "the device watches its kernels' accesses and did not tell what it saw".to_owned();
        return Some(Check::failed(NAME, Failure::new(what)));
    };
    if *count == 0 {
        return Some(Check::passed(NAME));
    }
    let (headline, rest) = first.split_first().map_or((String::new(), &[][..]), |(line, rest)| (line.clone(), rest));
    let what = match count {
        1 => headline,
        n => format!("{n} complaints, the first: {headline}"),
    };
    let worst = (!rest.is_empty()).then(|| rest.join("; "));
    Some(Check::failed(NAME, Failure { worst, ..Failure::new(what) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "\nInvalid read of size 4 at global memory address 0x2000000000084\n\tKernel: gemm\n\
                       \tEntity: Global(33,0,0)\n\tAt line 46 (column 29) of input.cl:\n\t  word = code[i];\n\t\n\n\
                       FATAL ERROR (a.cpp:1)\nUnsupported instruction: freeze\n\tKernel: gemv\n";

    #[test]
    fn complaints_are_counted_and_the_first_is_told() {
        let watched = Capabilities { watched: true, ..Capabilities::OWN };
        assert_eq!(Complaints::read(TWO).count, 2);
        let failure = accesses_check(&watched, Some(&Complaints::read(TWO))).unwrap().failure().cloned().unwrap();
        let what = "2 complaints, the first: Invalid read of size 4 at global memory address 0x2000000000084";
        assert_eq!(failure.what, what);
        let worst = failure.worst.unwrap();
        assert!(worst.starts_with("Kernel: gemm; ") && worst.ends_with("input.cl:; word = code[i];"), "{worst}");
    }

    #[test]
    fn silence_passes_and_anything_else_does_not() {
        let watched = Capabilities { watched: true, ..Capabilities::OWN };
        let check = |text| accesses_check(&watched, Some(&Complaints::read(text)));
        assert_eq!(check(""), Some(Check::passed("accesses")));
        assert_eq!(check("\n\n"), Some(Check::passed("accesses")));
        for text in ["x", "\tindented alone", "one\ntwo"] {
            assert_eq!(Complaints::read(text).count, 1, "{text}");
            assert!(check(text).unwrap().failure().is_some(), "{text}");
        }
        assert!(accesses_check(&watched, None).unwrap().failure().is_some());
        assert_eq!(accesses_check(&Capabilities::OWN, None), None);
    }
}
