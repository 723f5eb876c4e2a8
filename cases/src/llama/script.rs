//! Scenarios: what is asked of a build, and what must hold of its answers.

use super::calls::Call;
use super::weights::{VOCABULARY, Variant};
use crate::id::words;
use crate::state::tensor::type_number;
use crate::stream::Stream;

/// Sequences that a context has room for.
pub const SEQUENCES: usize = 4;

/// Cells that a context has room for, over all sequences.
pub const CELLS: usize = 512;

words! {
    /// What happens to the state.
    pub enum Scenario: "scenario" {
        /// Everything is saved, and loaded into a new context.
        Fresh = "fresh",
        /// Everything is saved, and loaded into a context that holds another conversation.
        Dirty = "dirty",
        /// Several sequences are saved together, and loaded into a new context.
        Many = "many",
        /// One of several sequences is saved, and loaded into a context with holes in which others live.
        Holes = "holes",
        /// One sequence is copied to another, and all is saved before anything else happens.
        Copied = "copied",
        /// What removing positions can't undo is saved, and loaded after more was decoded and removed.
        Partial = "partial",
        /// Blobs that were cut or altered are loaded.
        Damaged = "damaged",
    }
}

/// What must hold of the records, which are named by the places of their calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Two decodings of the same tokens give the same logits.
    Same {
        /// The check that says so.
        check: &'static str,
        /// The one.
        got: usize,
        /// The other, which is right.
        want: usize,
        /// Cells and their order are the same, so that bits are where a device repeats itself.
        exactly: bool,
        /// The call whose work it is: without a function for that there is nothing to say.
        of: usize,
    },
    /// They give other logits: else that they are the same elsewhere says nothing.
    Differs {
        /// The one.
        got: usize,
        /// The other.
        want: usize,
    },
    /// The size that was asked for, and bytes written and read, are one number, and nothing was written behind it.
    Size {
        /// Asked for.
        size: usize,
        /// Written.
        save: usize,
        /// Read.
        load: usize,
    },
    /// Our own reader takes the blob and writes it back as it was.
    Blob {
        /// Where it was saved.
        save: usize,
    },
    /// A damaged blob is refused where it must be, and a refused one changes nothing.
    Refused {
        /// Where it was loaded.
        load: usize,
        /// Where it was saved.
        save: usize,
        /// What was decoded after it.
        got: usize,
        /// The same where nothing was loaded.
        want: usize,
    },
}

/// Calls in order, and claims about them.
#[derive(Clone, Debug)]
pub struct Script {
    /// What is asked.
    pub calls: Vec<Call>,
    /// What must hold.
    pub claims: Vec<Claim>,
    variant: Variant,
    pub(super) stream: Numbers,
}

/// Numbers for tokens and lengths, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers(Stream, u64);

impl Numbers {
    pub(super) fn below(&mut self, end: usize) -> usize {
        self.1 += 1;
        self.0.below(self.1, end as u64) as usize
    }
}

/// A sequence of one context on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Talk {
    pub(super) context: usize,
    pub(super) sequence: i32,
    pub(super) position: i32,
}

impl Script {
    /// A scenario with tokens and lengths of a seed.
    pub fn new(variant: Variant, scenario: Scenario, seed: u64) -> Self {
        let stream = Numbers(Stream::new(seed, 0x746f_6b65), 0);
        let mut script = Script { calls: Vec::new(), claims: Vec::new(), variant, stream };
        let arch = variant.arch;
        match scenario {
            Scenario::Fresh => script.whole(arch, false),
            Scenario::Dirty => script.whole(arch, true),
            Scenario::Many => script.many(),
            Scenario::Holes => script.holes(),
            Scenario::Copied => script.copied(),
            Scenario::Partial => script.partial(),
            Scenario::Damaged => script.damaged(arch),
        }
        script
    }

    pub(super) fn call(&mut self, call: Call) -> usize {
        self.calls.push(call);
        self.calls.len() - 1
    }

    pub(super) fn open(&mut self, context: usize) {
        let types = (self.variant.types != Variant::DEFAULT_TYPES).then(|| self.variant.types.map(type_number));
        self.call(Call::Open { context, types });
    }

    /// So many tokens from anywhere in the vocabulary.
    pub(super) fn tokens(&mut self, count: usize) -> Vec<i32> {
        (0..count).map(|_| self.stream.below(VOCABULARY) as i32).collect()
    }

    /// A length: usually beyond a sliding window.
    pub(super) fn length(&mut self) -> usize {
        9 + self.stream.below(24)
    }

    pub(super) fn decode(&mut self, talk: &mut Talk, tokens: &[i32]) -> usize {
        let Talk { context, sequence, position } = *talk;
        talk.position += tokens.len() as i32;
        self.call(Call::Decode { context, sequence, position, tokens: tokens.to_vec() })
    }
}
