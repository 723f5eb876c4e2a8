//! Engines that save and load state wrongly. The entries are where the engine is:
//! [`conform_cases::state::mutants`].

use std::sync::LazyLock;

use conform_cases::state::mutants::MUTANTS as ENGINES;

use super::super::{Fault, Mutant, STATE};

/// One for each wrong engine.
pub(super) static MUTANTS: LazyLock<Vec<Mutant>> = LazyLock::new(|| {
    let mutant = |m: &conform_cases::state::mutants::Mutant| Mutant {
        id: m.id,
        bug: m.bug,
        what: m.what,
        op: STATE,
        fault: Fault::State(m.change),
    };
    ENGINES.iter().map(mutant).collect()
});
