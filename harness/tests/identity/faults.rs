//! Wrong rules: each must be noticed by a recorded table; `conform mutants` hunts the same with random ones.

use conform_harness::identity::Rules;
use conform_harness::mutants::hunt::{Hunted, on_tables};
use conform_harness::mutants::{Fault, table};

use crate::tables::{GOLDEN, judge};

/// Random tables that a fault must not survive.
const TABLES: u64 = 5_000;

/// Wrong rules, each with a table that shows it.
const SHOWN_BY: &[(&str, &str)] = &[
    ("identity-fields-in-16-bytes", "four-equal-gpus"),
    ("identity-by-uuid", "equal-uuids"),
    ("identity-by-uuid", "equal-uuids-without-bus"),
    ("identity-by-name", "four-equal-gpus"),
    ("identity-by-number", "integrated-and-discrete"),
    ("identity-by-number", "filtered"),
    ("identity-missing-are-equal", "missing-ids"),
    ("identity-letter-case", "letter-case"),
    ("identity-in-12-bytes", "functions"),
    ("identity-narrow-domain", "wide-domains"),
    ("identity-within-a-driver", "listed-twice"),
    ("identity-first-candidate", "several-candidates"),
    ("identity-uuids-unread", "two-virtual"),
    ("identity-part-is-whole", "mig"),
    ("identity-never-merged", "three-backends"),
    ("identity-one-integrated", "several-integrated"),
    ("identity-no-integrated", "integrated-and-remote"),
    ("identity-memory-as-told", "several-integrated"),
    ("identity-first-always", "two-equal"),
    ("identity-alias-by-number", "filtered"),
];

#[test]
fn wrong_rules_are_noticed() {
    let mut wrong = 0;
    for mutant in table::all() {
        let Fault::Identity(change) = mutant.fault else { continue };
        wrong += 1;
        let mut rules = Rules::default();
        change(&mut rules);
        let tables: Vec<_> = SHOWN_BY.iter().filter(|(id, _)| *id == mutant.id).collect();
        assert!(!tables.is_empty(), "{} has no table", mutant.id);
        for (id, file) in tables {
            let golden = GOLDEN.iter().find(|g| g.file == *file).unwrap();
            judge(golden, &Rules::default()).unwrap();
            judge(golden, &rules).expect_err(id);
        }
        assert!(matches!(on_tables(change, 0, TABLES), Hunted::Killed(_)), "{}", mutant.id);
    }
    assert!(SHOWN_BY.len() >= wrong);
}

#[test]
fn right_rules_survive() {
    assert!(matches!(on_tables(|_| {}, 0, TABLES), Hunted::Survived { cases: TABLES, judged: TABLES, unproven: 0 }));
}
