//! Sorted slots that are used again: what a device of our own keeps between the matmuls of a plan.
//!
//! A layer sorts the router's choice once for all of its matmuls. What was sorted
//! stays right as long as it would come out the same: the same ids, read through
//! the same view, and as many experts. So a table belongs to the allocation of the
//! ids, to the view of it and to the number of experts, and it is good for one
//! version of what that allocation holds. Whoever writes to an allocation, by
//! whatever way, makes another version of it.

use conform_cases::plan::{Part, Plan, Step, Tensor};

/// What decides that a table may be used again. All but the first are wrong, and exist to be caught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// It was made of what the ids are now.
    #[default]
    SameContents,
    /// It was made of ids of the same shape, for as many experts.
    SameShapes,
    /// It was made of the same tensor, whatever that held.
    SameTensor,
}

/// What a table was made for.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    /// The tensor that has the memory of the ids.
    allocation: usize,
    /// View and allocation of the ids.
    geometry: [[usize; 4]; 3],
    experts: usize,
}

/// Which tables of a plan there are, and what is in them. Their memory is the device's own business.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    reuse: Reuse,
    /// Nothing is used again.
    is_fresh: bool,
    /// By tensor of the plan: how often what its allocation holds has changed.
    versions: Vec<u64>,
    keys: Vec<Key>,
    /// The version of the ids that each table was made of; nothing where it holds no table.
    made_of: Vec<Option<u64>>,
    sorts: u64,
}

impl Tables {
    /// None yet.
    pub(super) fn new(plan: &Plan, reuse: Reuse) -> Self {
        Tables {
            reuse,
            is_fresh: plan.fresh_routing,
            versions: vec![0; plan.tensors.len()],
            keys: Vec::new(),
            made_of: Vec::new(),
            sorts: 0,
        }
    }

    /// The number of the table that a step needs, and whether it is a new one: then it is the next after all others.
    pub(super) fn table(&mut self, plan: &Plan, ids: usize, experts: usize) -> (usize, bool) {
        let Tensor { start, shape, parent, .. } = plan.tensors[ids];
        let key = Key { allocation: plan.allocation(ids), geometry: [start, shape, parent], experts };
        let is_same = |known: &Key| match self.reuse {
            Reuse::SameContents | Reuse::SameTensor => *known == key,
            Reuse::SameShapes => known.geometry[1] == key.geometry[1] && known.experts == experts,
        };
        if let Some(at) = self.keys.iter().position(is_same) {
            return (at, false);
        }
        self.keys.push(key);
        self.made_of.push(None);
        (self.keys.len() - 1, true)
    }

    /// Whether a table is what sorting would make of the ids again.
    pub(super) fn is_good(&self, table: usize) -> bool {
        let made_of = self.made_of[table];
        let is_good = match self.reuse {
            Reuse::SameContents => made_of == Some(self.versions[self.keys[table].allocation]),
            Reuse::SameShapes | Reuse::SameTensor => made_of.is_some(),
        };
        is_good && !self.is_fresh
    }

    /// A table was made of the ids as they are.
    pub(super) fn made(&mut self, table: usize) {
        self.made_of[table] = Some(self.versions[self.keys[table].allocation]);
        self.sorts += 1;
    }

    /// Something was written to a tensor's allocation.
    pub(super) fn written(&mut self, tensor: usize) {
        if let Some(version) = self.versions.get_mut(tensor) {
            *version += 1;
        }
    }

    /// The same for all tensors that parts lie in.
    pub(super) fn parts_written(&mut self, parts: &[Part]) {
        parts.iter().for_each(|part| self.written(part.tensor));
    }

    /// The same for what a step writes.
    pub(super) fn step_written(&mut self, step: &Step) {
        if let Step::MulMatId { out, .. } | Step::Argsort { out, .. } | Step::TopK { out, .. } = step {
            self.written(*out);
        }
    }

    /// The tables themselves were overwritten.
    pub(super) fn forget(&mut self) {
        self.made_of.fill(None);
    }

    /// How often slots were sorted.
    pub(super) fn sorts(&self) -> u64 {
        self.sorts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::formats::ElemType;
    use conform_cases::plan::Role;

    /// Two ids tensors of one shape, and a view of the first that leaves a column out.
    fn plan() -> Plan {
        let ids = |name| Tensor::whole(name, ElemType::I32, [4, 5, 1, 1], Role::Input);
        let mut view = Tensor { role: Role::View { of: 0 }, ..ids("view") };
        view.shape[0] = 3;
        Plan { tensors: vec![ids("a"), ids("b"), view], ..Plan::default() }
    }

    #[test]
    fn a_table_is_good_for_what_it_was_made_of() {
        let plan = plan();
        let mut tables = Tables::new(&plan, Reuse::default());
        assert_eq!(tables.table(&plan, 0, 8), (0, true));
        assert_eq!(tables.table(&plan, 0, 8), (0, false));
        assert_eq!(tables.table(&plan, 1, 8), (1, true), "other ids");
        assert_eq!(tables.table(&plan, 0, 9), (2, true), "more experts");
        assert_eq!(tables.table(&plan, 2, 8), (3, true), "another view");
        (0..4).for_each(|table| tables.made(table));
        assert!((0..4).all(|table| tables.is_good(table)));
        tables.written(0);
        assert_eq!((0..4).map(|table| tables.is_good(table)).collect::<Vec<_>>(), [false, true, false, false]);
        tables.forget();
        assert!(!tables.is_good(1));
        assert_eq!(tables.sorts(), 4);
    }

    #[test]
    fn fresh_routing_uses_nothing_again() {
        let plan = Plan { fresh_routing: true, ..plan() };
        let mut tables = Tables::new(&plan, Reuse::default());
        let (table, _) = tables.table(&plan, 0, 8);
        tables.made(table);
        assert!(!tables.is_good(table));
    }

    #[test]
    fn wrong_rules_are_wrong() {
        let plan = plan();
        let mut shapes = Tables::new(&plan, Reuse::SameShapes);
        shapes.table(&plan, 0, 8);
        shapes.made(0);
        assert_eq!((shapes.table(&plan, 1, 8), shapes.is_good(0)), ((0, false), true));
        let mut tensor = Tables::new(&plan, Reuse::SameTensor);
        tensor.table(&plan, 0, 8);
        tensor.made(0);
        tensor.written(0);
        assert!(tensor.is_good(0));
    }
}
