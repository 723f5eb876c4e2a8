//! Every mutant. A new one is one entry in one of these files.
//!
//! M1 to M12 are the faults that the project has promised to catch.

mod identity;
mod products;
mod routing;
mod sorts;
mod state;
mod unseen;
mod zeros;

use super::{Edit, Edits, Fault, Mutant};

/// All mutants, in a fixed order.
pub fn all() -> impl Iterator<Item = &'static Mutant> {
    let tables = [routing::MUTANTS, products::MUTANTS, sorts::MUTANTS, zeros::MUTANTS, unseen::MUTANTS];
    tables.into_iter().flatten().chain(state::MUTANTS.iter()).chain(identity::MUTANTS)
}

/// An edit, short enough for a table.
const fn edit(file: &'static str, find: &'static str, replace: &'static str) -> Edit {
    Edit { file, find, replace }
}

/// A fault in kernels of our own that has no place in the stages of the embedded device.
const fn kernels(opencl: &'static [Edit], cuda: &'static [Edit]) -> Fault {
    Fault::Kernels(Edits { opencl, cuda, rust: None })
}
