//! Named selections of cases.

mod ggml_grid;

use std::collections::BTreeSet;

use crate::case::{Case, OPS};
use crate::id::words;
use crate::llama::case_type as llama_state;
use crate::state::case_type;

words! {
    /// A named selection of cases.
    pub enum Profile: "profile" {
        /// The named cases of every op, the corpus and about a thousand drawn ones: minutes at most. Of these and all that
        /// are drawn without a profile's own sequence one in 21 has several steps.
        Smoke = "smoke",
        /// The same with 21,000 drawn cases.
        Full = "full",
        /// Drawn cases alone, under a fresh seed unless one is given.
        Random = "random",
        /// Cases that once failed somewhere.
        Corpus = "corpus",
        /// Drawn matmuls of the weight types that only a ggml build decodes, under a fresh seed unless one is given.
        GgmlTypes = "ggml-types",
        /// State that is saved and loaded: the named cases and a thousand drawn ones.
        State = "state",
        /// State that a real libllama saves and loads: every model in every scenario, with five seeds.
        Llama = "llama",
        /// The grid of ggml's own backend test, which is the same in every run.
        GgmlGrid = "ggml-grid",
    }
}

/// One drawn case in so many is a program of several steps.
const SHARE: u64 = 21;

/// The regression corpus: one id a line, then `#` and what failed there.
const CORPUS: &str = include_str!("../../../golden/corpus.txt");

impl Profile {
    /// The seed of a profile whose cases are the same in every run.
    pub const FIXED_SEED: u64 = 1;

    /// How many cases are drawn unless told otherwise.
    pub fn drawn(self) -> u64 {
        match self {
            Profile::Smoke => 1_155,
            Profile::Full => 21_000,
            Profile::Random | Profile::GgmlTypes | Profile::State => 1_000,
            Profile::Corpus | Profile::GgmlGrid | Profile::Llama => 0,
        }
    }

    /// True for profiles of drawn cases alone, which are others in every run.
    pub fn is_fresh(self) -> bool {
        matches!(self, Profile::Random | Profile::GgmlTypes)
    }

    /// The `index`-th drawn case under a seed.
    pub fn draw(self, seed: u64, index: u64) -> Case {
        match self {
            Profile::GgmlTypes => Case::draw_by_build(seed, index),
            Profile::State => Case::draw_state(seed, index),
            // Programs of several steps stand between the others, which keep their own sequence.
            _ if index % SHARE == SHARE - 1 => Case::draw_steps(seed, index / SHARE),
            _ => Case::draw(seed, index - index / SHARE),
        }
    }

    /// The cases of a profile, in order: the corpus first, so that what once failed is seen first.
    pub fn cases(self, seed: u64, drawn: u64) -> impl Iterator<Item = Case> {
        let fixed = match self {
            Profile::Smoke | Profile::Full => {
                // A build may have no libllama, and nothing else has one.
                let corpus = corpus().into_iter().filter(|case| !needs_libllama(case));
                corpus.chain(named()).collect()
            }
            Profile::Corpus => corpus(),
            Profile::State => named().into_iter().filter(|case| case_type::is_state(case.body().op())).collect(),
            Profile::GgmlGrid => ggml_grid::cases(),
            Profile::Llama => llama(),
            Profile::Random | Profile::GgmlTypes => Vec::new(),
        };
        fixed.into_iter().chain((0..drawn).map(move |i| self.draw(seed, i)))
    }
}

/// Seeds of each model and scenario.
const LLAMA_SEEDS: u64 = 5;

/// Every case of a libllama, those of the corpus first. The sections are constants, and a test parses each of them.
fn llama() -> Vec<Case> {
    let of_seed = |seed| llama_state::all().filter_map(move |sections| Case::from_sections(&sections, seed).ok());
    let failed: Vec<Case> = corpus().into_iter().filter(needs_libllama).collect();
    let ids: BTreeSet<String> = failed.iter().map(Case::id).collect();
    let others = (1..=LLAMA_SEEDS).flat_map(of_seed).filter(|case| !ids.contains(&case.id()));
    failed.iter().cloned().chain(others).collect()
}

fn needs_libllama(case: &Case) -> bool {
    case.body().op() == llama_state::LLAMA.name
}

/// The named cases of every op. They are constants of this crate, and a test parses each of them.
fn named() -> Vec<Case> {
    let sections = OPS.iter().flat_map(|op| op.named);
    sections.filter_map(|(sections, _)| Case::from_sections(sections, Profile::FIXED_SEED).ok()).collect()
}

/// The cases of the corpus. It is a file of this repository, and a test parses each line of it.
fn corpus() -> Vec<Case> {
    corpus_lines().filter_map(|id| id.parse().ok()).collect()
}

fn corpus_lines() -> impl Iterator<Item = &'static str> {
    CORPUS.lines().filter_map(|line| line.split('#').next()).map(str::trim).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;

    #[test]
    fn every_line_of_the_corpus_is_an_id() {
        for id in corpus_lines() {
            assert!(id.parse::<Case>().is_ok(), "{id}");
        }
    }

    #[test]
    fn every_scenario_of_a_libllama_is_there() {
        let ids: BTreeSet<String> = Profile::Llama.cases(1, 0).map(|case| case.id()).collect();
        assert_eq!(ids.len(), (7 * 5 + 2 * 3) * 5);
        assert_eq!(Profile::Llama.cases(1, 0).count(), ids.len());
    }

    #[test]
    fn drawn_cases_are_canonical_and_affordable() {
        let (mut operations, mut ids) = (0, std::collections::BTreeSet::new());
        for case in Profile::Random.cases(7, 4000) {
            let id = case.id();
            assert_eq!(id.parse::<Case>().unwrap().id(), id);
            let cost = case.body().cost();
            assert!(
                cost.operations <= Cost::MAX_OPERATIONS && cost.input_elements <= Cost::MAX_INPUT_ELEMENTS,
                "{id}: {cost:?}"
            );
            operations += cost.operations;
            ids.insert(id);
        }
        assert_eq!(ids.len(), 4000);
        assert!(operations / 4000 <= 2_000_000, "mean {}", operations / 4000);
    }

    #[test]
    fn drawn_types_are_those_of_builds() {
        let ids: Vec<String> = Profile::GgmlTypes.cases(7, 2000).map(|c| c.id()).collect();
        for id in &ids {
            let case: Case = id.parse().unwrap();
            assert_eq!(case.id(), *id);
            assert!(case.plan().tensors[0].ty.is_decoded_by_build(), "{id}");
            let cost = case.body().cost();
            assert!(
                cost.operations <= Cost::MAX_OPERATIONS && cost.input_elements <= Cost::MAX_INPUT_ELEMENTS,
                "{id}: {cost:?}"
            );
        }
        for ty in crate::formats::ElemType::DECODED_BY_BUILD {
            assert!(ids.iter().filter(|id| id.contains(&format!("w={ty},"))).count() >= 60, "{ty}");
        }
    }

    #[test]
    fn smoke_has_a_thousand_cases_and_a_bounded_mean() {
        let cases: Vec<Case> = Profile::Smoke.cases(Profile::FIXED_SEED, Profile::Smoke.drawn()).collect();
        let operations: u64 = cases.iter().map(|c| c.body().cost().operations).sum();
        assert!(cases.len() >= 1000);
        assert!(operations / cases.len() as u64 <= 2_000_000);
    }

    /// Every op, group and recipe word is reached by the drawn cases of the smoke profile.
    #[test]
    fn smoke_reaches_every_word() {
        let ids: Vec<String> = Profile::Smoke.cases(1, Profile::Smoke.drawn()).map(|c| c.id()).collect();
        let words = crate::mul_mat_id::Route::ALL.iter().map(|r| format!("route={r},"));
        let words = words.chain(crate::mul_mat_id::Data::DRAWN.iter().map(|d| format!("data={d}/")));
        let words = words.chain(crate::keys::Keys::ALL.iter().map(|d| format!("data={d}/")));
        let words = words.chain(
            [
                "w=f32,", "w=f16,", "w=q4_0,", "w=q8_0,", "w=mxfp4,", "o=desc", ",wv=", ",xv=", ",iv=", ",t=", ",b=",
                ",r3=", "top_k/", ",k=1/",
            ]
            .map(str::to_owned),
        );
        for word in words {
            assert!(ids.iter().filter(|id| id.contains(&word)).count() >= 10, "{word}");
        }
    }
}
