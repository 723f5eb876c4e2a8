//! What arithmetic a device shows: from exact integer cases to a statement, and the statement beside a model.
//!
//! Each case of a probe has one right answer in 24-bit sums over operands as they are. A device that gives it kept
//! every bit that the case's recipe needs; one that does not has lost some. So the cases order devices from sharp to
//! coarse, in three aspects: sums, activations, weights. Nothing here sets a tolerance.

use std::fmt;

use serde::Serialize;

use super::{Activations, Conversion, Kernels, Model, Quantiser, Scales, Sums};
use crate::case::Case;
use crate::formats::ElemType;
use crate::id::IdError;
use crate::judge::{Capabilities, Judgement};
use crate::mul_mat_id::Data;

/// Token counts at which backends were seen to take another path.
pub const TOKENS: [usize; 6] = [1, 2, 4, 8, 9, 33];

/// What is asked of a weight type.
const RECIPES: [Data; 6] = [Data::Wide, Data::Narrow, Data::Act255, Data::Act257, Data::Act2049, Data::W2049];

/// The cases that probe a weight type at one number of tokens, each with its recipe. Two whole blocks of the widest
/// quantiser, and rows enough for a few tiles.
pub fn cases(w: ElemType, tokens: usize) -> Result<Vec<(Data, Case)>, IdError> {
    let asked = RECIPES.into_iter().filter(|data| data.is_possible(w));
    let case = |data| {
        let sections = format!("mul_mat_id/w={w},x=f32,e=4,u=2,m=64,n={tokens},k=512/route=shuffle,data={data}");
        Ok((data, Case::from_sections(&sections, 1)?))
    };
    asked.map(case).collect()
}

/// The device that a probe's outputs are judged as: our own kernels convert nothing and add exactly what can be.
pub fn ideal(device: &Capabilities) -> Capabilities {
    Capabilities { kernels: Kernels::Own, flushes_subnormals: false, flushes_f16: false, ..*device }
}

/// Whether every bit survived in outputs that were judged as those of the [`ideal`] device; sums that overflowed did
/// not. The error is one line: the outputs say nothing about arithmetic.
pub fn survived(judgement: &Judgement) -> Result<bool, String> {
    let other = judgement.failures().find(|c| !["exact", "class"].contains(&c.name.as_str()));
    if let Some((check, failure)) = other.and_then(|c| Some((c, c.failure()?))) {
        return Err(format!("{}: {}", check.name, failure.what));
    }
    match &judgement.metrics {
        Some(m) if judgement.failures().next().is_none() && m.exact < m.elements => {
            Err("not every output has one right answer".to_owned())
        }
        Some(_) => Ok(judgement.failures().next().is_none()),
        None => Err("the outputs are not judged by value".to_owned()),
    }
}

/// Which recipes a device computed without losing a bit; `None` where it was not asked or did not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    wide: Option<bool>,
    narrow: Option<bool>,
    act255: Option<bool>,
    act257: Option<bool>,
    act2049: Option<bool>,
    w2049: Option<bool>,
}

impl Observed {
    /// Notes an answer. Recipes that ask nothing are ignored.
    pub fn note(&mut self, recipe: Data, survived: bool) {
        let place = match recipe {
            Data::Wide => &mut self.wide,
            Data::Narrow => &mut self.narrow,
            Data::Act255 => &mut self.act255,
            Data::Act257 => &mut self.act257,
            Data::Act2049 => &mut self.act2049,
            Data::W2049 => &mut self.w2049,
            _ => return,
        };
        *place = Some(survived);
    }
}

/// How much of the numbers an aspect keeps, from coarse to sharp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// Less than any known arithmetic.
    Less,
    /// 8-bit codes with a common scale.
    Codes,
    /// 8 bits each: bf16.
    Eight,
    /// 11 bits each: f16, or tf32.
    Eleven,
    /// 24 bits: f32.
    All,
}

use Kept::{All, Codes, Eight, Eleven, Less};

/// What is known of an aspect: at least the one, at most the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Range {
    /// No coarser than this.
    pub least: Kept,
    /// No sharper than this.
    pub most: Kept,
}

/// Nothing.
const ANYTHING: Range = Range { least: Less, most: All };

impl Range {
    const fn only(kept: Kept) -> Self {
        Range { least: kept, most: kept }
    }
}

/// What arithmetic a device shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Statement {
    /// Accumulation.
    pub sums: Range,
    /// What becomes of activations.
    pub activations: Range,
    /// What becomes of weights.
    pub weights: Range,
}

impl Statement {
    /// The statement that observations allow.
    pub fn of(o: &Observed) -> Self {
        let sums = match (o.wide, o.narrow) {
            (Some(true), _) => Range::only(All),
            (Some(false), Some(true)) => Range::only(Eleven),
            (Some(false), Some(false)) => Range::only(Less),
            _ => ANYTHING,
        };
        // Where sums lose bits themselves a lost bit is not the operand's fault.
        let most = |kept| if sums.least == All { kept } else { All };
        let activations = match (o.act255, o.act257, o.act2049) {
            (.., Some(true)) => Range::only(All),
            (_, Some(true), Some(false)) => Range { least: Eleven, most: most(Eleven) },
            // These need 11-bit sums at most.
            _ if sums.least < Eleven => ANYTHING,
            (Some(true), Some(false), _) => Range::only(Eight),
            (Some(false), Some(false), _) => Range { least: Less, most: Codes },
            _ => ANYTHING,
        };
        let weights = match o.w2049 {
            Some(true) => Range::only(All),
            Some(false) => Range { least: Less, most: most(Eleven) },
            None => ANYTHING,
        };
        Statement { sums, activations, weights }
    }

    /// What a model allows.
    fn declared(model: &Model) -> Self {
        let conversion = |c| match c {
            Conversion::None => All,
            Conversion::F16 | Conversion::Tf32 => Eleven,
            Conversion::Bf16 => Eight,
        };
        let in_halves = |q: Quantiser| q.parts.scales == Scales::HalfProducts;
        let is_wide = model.stages.iter().all(|stage| stage.sums != Sums::F16)
            && !matches!(model.activations, Activations::Quantised(q) if in_halves(q));
        Statement {
            sums: Range::only(if is_wide { All } else { Eleven }),
            activations: Range::only(match model.activations {
                Activations::Converted(c) => conversion(c),
                Activations::Quantised(_) => Codes,
            }),
            weights: Range::only(conversion(model.weights)),
        }
    }

    fn aspects(&self) -> [Range; 3] {
        [self.sums, self.activations, self.weights]
    }

    /// True if the device was asked nothing, or answered nothing.
    fn is_empty(&self) -> bool {
        self.aspects().iter().all(|range| *range == ANYTHING)
    }

    /// An entry of the table that fits, in its own words. Where something was not seen it is taken to be sharp, which a
    /// wrong result will tell; how many roundings there are cannot be seen at all.
    fn entry(&self) -> String {
        let sums = if self.sums.most < All { Sums::F16 } else { Sums::F32 };
        let conversion = |range: Range| match range.least {
            All => Conversion::None,
            _ if range == ANYTHING => Conversion::None,
            Eight => Conversion::Bf16,
            _ => Conversion::F16,
        };
        let activations = match self.activations.most {
            Codes => "Quantised(..)".to_owned(),
            _ => format!("Converted({:?})", conversion(self.activations)),
        };
        let weights = conversion(self.weights);
        format!("sums {sums:?}, activations {activations}, weights {weights:?}; count roundings in the kernels")
    }

    /// A model beside what was seen.
    pub fn beside(&self, kernels: Kernels, model: &Model) -> Standing {
        if self.is_empty() {
            return Standing::Unseen;
        }
        if kernels == Kernels::Unknown {
            return Standing::Proposed { entry: self.entry() };
        }
        let declared = Statement::declared(model);
        let pairs = || self.aspects().into_iter().zip(declared.aspects().map(|range| range.least));
        if pairs().any(|(seen, declared)| declared > seen.most) {
            Standing::Contradicts { declared: declared.to_string() }
        } else if pairs().any(|(seen, declared)| declared < seen.least) {
            Standing::Looser { declared: declared.to_string() }
        } else {
            Standing::AsDeclared
        }
    }
}

/// How the table's model stands beside what a device shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "standing", rename_all = "snake_case")]
pub enum Standing {
    /// They agree.
    AsDeclared,
    /// The device loses bits that the model says it keeps: correct results would be called wrong.
    Contradicts {
        /// The model, in the statement's words.
        declared: String,
    },
    /// The device keeps bits that the model lets it lose: wrong results would be called right.
    Looser {
        /// The model, in the statement's words.
        declared: String,
    },
    /// The table has no entry for these kernels.
    Proposed {
        /// One that fits.
        entry: String,
    },
    /// There is nothing to compare.
    Unseen,
}

impl Standing {
    /// True if the table is wrong.
    pub fn is_wrong(&self) -> bool {
        matches!(self, Standing::Contradicts { .. } | Standing::Looser { .. })
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sums = match self.sums.least {
            All => "24-bit sums",
            Eleven => "11-bit sums",
            _ if self.sums == ANYTHING => "sums not seen",
            _ => "sums of fewer than 11 bits",
        };
        let activations = match (self.activations.least, self.activations.most) {
            (All, _) => "f32 activations",
            (Eleven, Eleven) => "f16 activations",
            (Eleven, _) => "f16 or f32 activations",
            (Eight, _) => "bf16 activations",
            (_, Codes) => "8-bit activations",
            _ => "activations not seen",
        };
        let weights = match (self.weights.least, self.weights.most) {
            (Less, Eleven) => ", converted weights",
            (Eleven, _) => ", f16 weights",
            (Eight, _) => ", bf16 weights",
            _ => "",
        };
        write!(f, "{sums}, {activations}{weights}")
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::AsDeclared => f.write_str("as declared"),
            Standing::Contradicts { declared } => write!(f, "contradicts: declared {declared}"),
            Standing::Looser { declared } => write!(f, "declared looser than seen: {declared}"),
            Standing::Proposed { entry } => write!(f, "no entry; proposed: {entry}"),
            Standing::Unseen => f.write_str("nothing seen"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arithmetic, Shape, of_device};

    /// Answers in the order of [`RECIPES`]: `+` survived, `-` did not, `?` is not known.
    fn seen(answers: &str) -> Statement {
        let mut observed = Observed::default();
        for (recipe, answer) in RECIPES.into_iter().zip(answers.chars()).filter(|(_, answer)| *answer != '?') {
            observed.note(recipe, answer == '+');
        }
        Statement::of(&observed)
    }

    #[test]
    fn observations_become_statements() {
        for (answers, statement) in [
            ("++++++", "24-bit sums, f32 activations"),
            ("+++++-", "24-bit sums, f32 activations, converted weights"),
            ("+++++?", "24-bit sums, f32 activations"),
            ("++++-+", "24-bit sums, f16 activations"),
            ("++++--", "24-bit sums, f16 activations, converted weights"),
            ("+++--+", "24-bit sums, bf16 activations"),
            ("++---+", "24-bit sums, 8-bit activations"),
            ("-+++--", "11-bit sums, f16 or f32 activations"),
            ("-++---", "11-bit sums, bf16 activations"),
            ("-+----", "11-bit sums, 8-bit activations"),
            ("------", "sums of fewer than 11 bits, activations not seen"),
            ("??????", "sums not seen, activations not seen"),
            ("??++-?", "sums not seen, f16 or f32 activations"),
            ("+?????", "24-bit sums, activations not seen"),
            ("-?????", "sums not seen, activations not seen"),
        ] {
            assert_eq!(seen(answers).to_string(), statement, "{answers}");
        }
    }

    #[test]
    fn statements_stand_beside_models() {
        use ElemType::{Bf16, F16, F32, Mxfp4, Q4_0};
        use Kernels::{GgmlCpuAvx, GgmlVulkan, Own, OwnHalf, Unknown};
        let looser = |declared| format!("declared looser than seen: {declared}");
        let contradicts = |declared| format!("contradicts: declared {declared}");
        let as_declared = || "as declared".to_owned();
        for (kernels, weights, tokens, answers, standing) in [
            (Own, F32, 1, "++++++", as_declared()),
            (OwnHalf, Mxfp4, 9, "-+++-?", as_declared()),
            (OwnHalf, Mxfp4, 9, "++++-?", looser("11-bit sums, f16 activations, f16 weights")),
            (Own, F32, 1, "++++-+", contradicts("24-bit sums, f32 activations")),
            (Own, F32, 1, "+++++-", contradicts("24-bit sums, f32 activations")),
            (Own, Q4_0, 9, "++---+", contradicts("24-bit sums, f32 activations")),
            (Own, F32, 1, "-+++--", contradicts("24-bit sums, f32 activations")),
            (GgmlCpuAvx, Q4_0, 1, "++---+", as_declared()),
            (GgmlCpuAvx, Q4_0, 1, "++++++", looser("24-bit sums, 8-bit activations")),
            (GgmlCpuAvx, F16, 1, "++++-?", as_declared()),
            (GgmlCpuAvx, F16, 1, "+++++?", looser("24-bit sums, f16 activations")),
            (GgmlCpuAvx, Bf16, 1, "+++--?", as_declared()),
            (GgmlCpuAvx, F32, 1, "-+++--", contradicts("24-bit sums, f32 activations")),
            (GgmlVulkan, Q4_0, 9, "-+++--", as_declared()),
            (GgmlVulkan, Q4_0, 9, "++++--", looser("11-bit sums, f16 activations, f16 weights")),
            // Coarser in one aspect outweighs sharper in another.
            (GgmlVulkan, Q4_0, 9, "+++--+", contradicts("11-bit sums, f16 activations, f16 weights")),
            // What was not seen contradicts nothing.
            (GgmlVulkan, Q4_0, 9, "-+????", as_declared()),
            (Own, F32, 1, "??????", "nothing seen".to_owned()),
            (
                Unknown,
                F32,
                1,
                "++++--",
                "no entry; proposed: sums F32, activations Converted(F16), weights F16; count roundings in the kernels"
                    .to_owned(),
            ),
            (
                Unknown,
                Q4_0,
                1,
                "++---+",
                "no entry; proposed: sums F32, activations Quantised(..), weights None; count roundings in the kernels"
                    .to_owned(),
            ),
        ] {
            let shape = Shape { rows: 64, columns: 256 };
            let arithmetic = Arithmetic { kernels, weights, tokens, shape, flushes: false, flushes_f16: false };
            let model = of_device(&arithmetic);
            let got = seen(answers).beside(kernels, &model);
            assert_eq!(got.to_string(), standing, "{kernels:?} {weights} {tokens} {answers}");
            assert_eq!(got.is_wrong(), standing.starts_with("contradicts") || standing.starts_with("declared"));
        }
    }

    #[test]
    fn every_probe_is_an_id() {
        for w in ElemType::WEIGHTS {
            for tokens in TOKENS {
                let cases = cases(w, tokens).unwrap();
                assert_eq!(cases.len(), if Data::W2049.is_possible(w) { 6 } else { 5 });
                assert!(cases.iter().all(|(_, case)| case.body().model(&Capabilities::default()).is_some()));
            }
        }
    }
}
