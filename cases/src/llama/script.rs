//! Scenarios: what is asked of a build, and what must hold of its answers.

use super::calls::{Call, Damage, Piece};
use super::weights::{Arch, VOCABULARY};
use crate::id::words;
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
        /// One of several sequences is saved, and loaded into a context with holes in which others live.
        Holes = "holes",
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
        /// What was loaded before: without a function for that there is nothing to say.
        load: usize,
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
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// What is asked.
    pub calls: Vec<Call>,
    /// What must hold.
    pub claims: Vec<Claim>,
    stream: Numbers,
}

/// Numbers for tokens and lengths, one after the other.
#[derive(Clone, Copy, Debug)]
struct Numbers(Stream, u64);

impl Default for Numbers {
    fn default() -> Self {
        Numbers(Stream::new(0, 0x746f_6b65), 0)
    }
}

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.1 += 1;
        self.0.below(self.1, end as u64) as usize
    }
}

/// A sequence of one context on its way.
#[derive(Clone, Copy, Debug)]
struct Talk {
    context: usize,
    sequence: i32,
    position: i32,
}

/// Contexts by what they are for.
const SOURCE: usize = 0;
const TARGET: usize = 1;
const CONTROL: usize = 2;

impl Script {
    /// A scenario with tokens and lengths of a seed.
    pub fn new(arch: Arch, scenario: Scenario, seed: u64) -> Self {
        let mut script = Script { stream: Numbers(Stream::new(seed, 0x746f_6b65), 0), ..Script::default() };
        match scenario {
            Scenario::Fresh => script.whole(arch, false),
            Scenario::Dirty => script.whole(arch, true),
            Scenario::Holes => script.holes(),
            Scenario::Partial => script.partial(),
            Scenario::Damaged => script.damaged(arch),
        }
        script
    }

    fn call(&mut self, call: Call) -> usize {
        self.calls.push(call);
        self.calls.len() - 1
    }

    fn open(&mut self, context: usize) {
        self.call(Call::Open { context });
    }

    /// So many tokens from anywhere in the vocabulary.
    fn tokens(&mut self, count: usize) -> Vec<i32> {
        (0..count).map(|_| self.stream.below(VOCABULARY) as i32).collect()
    }

    /// A length: usually beyond a sliding window.
    fn length(&mut self) -> usize {
        9 + self.stream.below(24)
    }

    fn decode(&mut self, talk: &mut Talk, tokens: &[i32]) -> usize {
        let Talk { context, sequence, position } = *talk;
        talk.position += tokens.len() as i32;
        self.call(Call::Decode { context, sequence, position, tokens: tokens.to_vec() })
    }

    /// Everything saved in one context and loaded into another.
    fn whole(&mut self, arch: Arch, is_dirty: bool) {
        let (len, next) = (self.length(), self.tokens(2));
        let prompt = self.tokens(len);
        self.open(SOURCE);
        let mut source = Talk { context: SOURCE, sequence: 0, position: 0 };
        self.decode(&mut source, &prompt);
        let what = Piece::Whole;
        let size = self.call(Call::Size { context: SOURCE, what });
        let save = self.call(Call::Save { context: SOURCE, what, blob: 0 });
        let one = self.call(Call::Save { context: SOURCE, what: Piece::Sequence(0), blob: 1 });
        let wanted = [self.decode(&mut source, &next[..1]), self.decode(&mut source, &next[1..])];

        self.open(TARGET);
        if is_dirty {
            // Longer than what is loaded, so that cells are left over.
            let other = self.tokens(len + 7);
            for sequence in 0..2 {
                self.decode(&mut Talk { context: TARGET, sequence, position: 0 }, &other);
            }
        }
        let load = self.call(Call::Load { context: TARGET, what, blob: 0, damage: None });
        let mut target = Talk { context: TARGET, sequence: 0, position: len as i32 };
        for (token, want) in next.iter().zip(wanted) {
            let got = self.decode(&mut target, &[*token]);
            // Cells that a window has left behind are not saved, so that others lie elsewhere.
            let exactly = arch != Arch::Window;
            self.claims.push(Claim::Same { check: "logits", got, want, exactly, load });
        }
        self.claims.extend([Claim::Size { size, save, load }, Claim::Blob { save }, Claim::Blob { save: one }]);
        // The same tokens after another prompt, in another context.
        let other = self.tokens(len);
        self.open(CONTROL);
        let mut control = Talk { context: CONTROL, sequence: 0, position: 0 };
        self.decode(&mut control, &other);
        let got = self.decode(&mut control, &next[..1]);
        self.claims.push(Claim::Differs { got, want: wanted[0] });
    }

    /// Decodes two sequences in turns, and a third between them that is removed again.
    fn fragmented(&mut self, context: usize, turns: &[[Vec<i32>; 3]]) -> [Talk; 2] {
        self.open(context);
        let mut talks = [0, 2, 3].map(|sequence| Talk { context, sequence, position: 0 });
        for turn in turns {
            for (talk, tokens) in talks.iter_mut().zip(turn) {
                self.decode(talk, tokens);
            }
        }
        self.call(Call::Remove { context, sequence: 3, from: 0, to: -1 });
        [talks[0], talks[1]]
    }

    /// One sequence of three is saved, and loaded beside others into a fragmented context.
    fn holes(&mut self) {
        let next = self.tokens(3);
        self.open(SOURCE);
        let mut source = [0, 1, 2].map(|sequence| Talk { context: SOURCE, sequence, position: 0 });
        for _ in 0..3 {
            for talk in &mut source {
                let count = 2 + self.stream.below(6);
                let tokens = self.tokens(count);
                self.decode(talk, &tokens);
            }
        }
        let what = Piece::Sequence(1);
        let size = self.call(Call::Size { context: SOURCE, what });
        let save = self.call(Call::Save { context: SOURCE, what, blob: 0 });
        let position = source[1].position;
        let wanted: Vec<usize> = next.iter().map(|token| self.decode(&mut source[1], &[*token])).collect();

        let turns: Vec<[Vec<i32>; 3]> = (0..3)
            .map(|_| {
                [0; 3].map(|_| {
                    let count = 1 + self.stream.below(5);
                    self.tokens(count)
                })
            })
            .collect();
        let others = self.fragmented(TARGET, &turns);
        let alone = self.fragmented(CONTROL, &turns);
        let load = self.call(Call::Load { context: TARGET, what, blob: 0, damage: None });
        self.claims.extend([Claim::Size { size, save, load }, Claim::Blob { save }]);
        let mut restored = Talk { context: TARGET, sequence: 1, position };
        for (token, want) in next.iter().zip(wanted) {
            let got = self.decode(&mut restored, &[*token]);
            self.claims.push(Claim::Same { check: "logits", got, want, exactly: false, load });
        }
        for (mut other, mut alone) in others.into_iter().zip(alone) {
            let want = self.decode(&mut alone, &next[..1]);
            let got = self.decode(&mut other, &next[..1]);
            self.claims.push(Claim::Same { check: "others", got, want, exactly: false, load });
        }
    }

    /// What can't be had again by removing positions is loaded, the rest is removed.
    fn partial(&mut self) {
        let (len, more, next) = (self.length(), self.tokens(6), self.tokens(1));
        let prompt = self.tokens(len);
        for context in [SOURCE, CONTROL] {
            self.open(context);
            self.decode(&mut Talk { context, sequence: 0, position: 0 }, &prompt);
        }
        let mut control = Talk { context: CONTROL, sequence: 0, position: len as i32 };
        let want = self.decode(&mut control, &next);
        let what = Piece::Partial(0);
        let size = self.call(Call::Size { context: SOURCE, what });
        let save = self.call(Call::Save { context: SOURCE, what, blob: 0 });
        let mut source = Talk { context: SOURCE, sequence: 0, position: len as i32 };
        self.decode(&mut source, &more);
        let load = self.call(Call::Load { context: SOURCE, what, blob: 0, damage: None });
        self.call(Call::Remove { context: SOURCE, sequence: 0, from: len as i32, to: -1 });
        source.position = len as i32;
        let got = self.decode(&mut source, &next);
        self.claims.push(Claim::Size { size, save, load });
        self.claims.push(Claim::Same { check: "partial", got, want, exactly: false, load });
    }

    /// Damaged blobs are loaded, each into a context that holds a conversation and must go on as if nothing had been.
    fn damaged(&mut self, arch: Arch) {
        let (len, next) = (self.length(), self.tokens(1));
        let (prompt, mine) = (self.tokens(len), self.tokens(8));
        self.open(SOURCE);
        self.decode(&mut Talk { context: SOURCE, sequence: 0, position: 0 }, &prompt);
        let pieces = [Piece::Whole, Piece::Sequence(0)];
        let saves: Vec<usize> =
            (0..2).map(|blob| self.call(Call::Save { context: SOURCE, what: pieces[blob], blob })).collect();
        let begin = |script: &mut Self, context| {
            script.open(context);
            let mut talk = Talk { context, sequence: 0, position: 0 };
            script.decode(&mut talk, &mine);
            talk
        };
        let mut control = begin(self, CONTROL);
        let want = self.decode(&mut control, &next);
        // Numbers before the name, and behind it.
        let name = arch.name().len();
        for (blob, what) in pieces.into_iter().enumerate() {
            for i in 0..4 {
                let number = self.stream.below(10);
                let at = 4 * number + if what == Piece::Whole && number > 0 { name } else { 0 };
                let damage = match i {
                    0 => Damage::Cut(1 + self.stream.below(64)),
                    1 => Damage::Cut(200 + self.stream.below(1000)),
                    // The head, the counts, and some cells.
                    2 => Damage::Word { at, add: 1 },
                    _ => Damage::Word { at, add: u32::MAX - self.stream.below(3) as u32 },
                };
                let mut talk = begin(self, TARGET);
                let load = self.call(Call::Load { context: TARGET, what, blob, damage: Some(damage) });
                let got = self.decode(&mut talk, &next);
                self.claims.push(Claim::Refused { load, save: saves[blob], got, want });
            }
        }
    }
}
