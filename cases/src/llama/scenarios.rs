//! What each scenario asks for, in which order.

use super::calls::{Call, Damage, Piece};
use super::script::{Claim, Script, Talk};
use super::weights::Arch;

/// Contexts by what they are for.
const SOURCE: usize = 0;
const TARGET: usize = 1;
const CONTROL: usize = 2;

impl Script {
    /// Everything saved in one context and loaded into another.
    pub(super) fn whole(&mut self, arch: Arch, is_dirty: bool) {
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
            self.claims.push(Claim::Same { check: "logits", got, want, exactly, of: load });
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

    /// Three sequences saved together, of which each goes on.
    pub(super) fn many(&mut self) {
        let next = self.tokens(2);
        self.open(SOURCE);
        let mut source = [0, 1, 2].map(|sequence| Talk { context: SOURCE, sequence, position: 0 });
        for talk in &mut source {
            let len = self.length();
            let tokens = self.tokens(len);
            self.decode(talk, &tokens);
        }
        let what = Piece::Whole;
        let size = self.call(Call::Size { context: SOURCE, what });
        let save = self.call(Call::Save { context: SOURCE, what, blob: 0 });
        self.open(TARGET);
        let load = self.call(Call::Load { context: TARGET, what, blob: 0, damage: None });
        self.claims.extend([Claim::Size { size, save, load }, Claim::Blob { save }]);
        let mut target = source.map(|talk| Talk { context: TARGET, ..talk });
        for token in next {
            for (source, target) in source.iter_mut().zip(&mut target) {
                let want = self.decode(source, &[token]);
                let got = self.decode(target, &[token]);
                self.claims.push(Claim::Same { check: "logits", got, want, exactly: false, of: load });
            }
        }
        let one = self.call(Call::Save { context: SOURCE, what: Piece::Sequence(0), blob: 1 });
        self.claims.push(Claim::Blob { save: one });
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
    pub(super) fn holes(&mut self) {
        let next = self.tokens(3);
        self.open(SOURCE);
        let mut source = [0, 1, 2].map(|sequence| Talk { context: SOURCE, sequence, position: 0 });
        let mut said = Vec::new();
        for _ in 0..3 {
            for (i, talk) in source.iter_mut().enumerate() {
                let count = 2 + self.stream.below(6);
                let tokens = self.tokens(count);
                self.decode(talk, &tokens);
                said.extend((i == 1).then_some(tokens));
            }
        }
        let what = Piece::Sequence(1);
        let size = self.call(Call::Size { context: SOURCE, what });
        let save = self.call(Call::Save { context: SOURCE, what, blob: 0 });
        let position = source[1].position;
        let wanted: Vec<usize> = next.iter().map(|token| self.decode(&mut source[1], &[*token])).collect();
        self.alone(&said, next[0], wanted[0]);

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
            self.claims.push(Claim::Same { check: "logits", got, want, exactly: false, of: load });
        }
        for (mut other, mut alone) in others.into_iter().zip(alone) {
            let want = self.decode(&mut alone, &next[..1]);
            let got = self.decode(&mut other, &next[..1]);
            self.claims.push(Claim::Same { check: "others", got, want, exactly: false, of: load });
        }
    }

    /// A sequence that has a context for itself, whose next token gives what it gave beside others.
    fn alone(&mut self, said: &[Vec<i32>], next: i32, got: usize) {
        self.open(CONTROL);
        let mut talk = Talk { context: CONTROL, sequence: 1, position: 0 };
        for tokens in said {
            self.decode(&mut talk, tokens);
        }
        let want = self.decode(&mut talk, &[next]);
        self.claims.push(Claim::Same { check: "beside", got, want, exactly: false, of: want });
    }

    /// A sequence and its copy are saved before either goes on, together and the copy alone, and both are loaded.
    pub(super) fn copied(&mut self) {
        let (len, next) = (self.length(), self.tokens(2));
        let prompt = self.tokens(len);
        let talk = |context, sequence| Talk { context, sequence, position: len as i32 };
        self.open(CONTROL);
        self.decode(&mut Talk { position: 0, ..talk(CONTROL, 0) }, &prompt);
        let want = self.decode(&mut talk(CONTROL, 0), &next[..1]);
        self.open(SOURCE);
        self.decode(&mut Talk { position: 0, ..talk(SOURCE, 0) }, &prompt);
        let of = self.call(Call::Copy { context: SOURCE, from: 0, to: 1 });
        let (whole, one) = (Piece::Whole, Piece::Sequence(1));
        let size = self.call(Call::Size { context: SOURCE, what: whole });
        let save = self.call(Call::Save { context: SOURCE, what: whole, blob: 0 });
        let alone = self.call(Call::Save { context: SOURCE, what: one, blob: 1 });
        self.claims.extend([Claim::Blob { save }, Claim::Blob { save: alone }]);
        // The original goes its own way, and the copy must not follow it.
        self.decode(&mut talk(SOURCE, 0), &next[1..]);
        self.call(Call::Save { context: SOURCE, what: one, blob: 2 });
        let got = self.decode(&mut talk(SOURCE, 1), &next[..1]);
        self.claims.push(Claim::Same { check: "copy", got, want, exactly: false, of });

        // Saved before anything was decoded, a copy is due, and may have been put off; later it is there.
        self.open(TARGET);
        let load = self.call(Call::Load { context: TARGET, what: whole, blob: 0, damage: None });
        self.claims.push(Claim::Size { size, save, load });
        for (sequence, check) in [(0, "logits"), (1, "queued")] {
            let got = self.decode(&mut talk(TARGET, sequence), &next[..1]);
            self.claims.push(Claim::Same { check, got, want, exactly: false, of: load });
        }
        for (blob, check) in [(1, "queued"), (2, "logits")] {
            self.open(TARGET);
            let load = self.call(Call::Load { context: TARGET, what: Piece::Sequence(2), blob, damage: None });
            let got = self.decode(&mut talk(TARGET, 2), &next[..1]);
            self.claims.push(Claim::Same { check, got, want, exactly: false, of: load });
        }
    }

    /// What can't be had again by removing positions is loaded, the rest is removed.
    pub(super) fn partial(&mut self) {
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
        self.claims.extend([Claim::Size { size, save, load }, Claim::Blob { save }]);
        self.claims.push(Claim::Same { check: "partial", got, want, exactly: false, of: load });
    }

    /// Damaged blobs are loaded, each into a context that holds a conversation and must go on as if nothing had been.
    pub(super) fn damaged(&mut self, arch: Arch) {
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
