//! Whether the claims of a script hold for the records that a build left behind.

use super::calls::{ABSENT, Call, Damage, GUARD, Piece, Record, read_records};
use super::read::{Unread, read_back};
use super::script::{Claim, Script};
use super::weights::Variant;
use crate::formats::read_f32;
use crate::inputs::Inputs;
use crate::judge::values::Expected;
use crate::judge::{Capabilities, Check, Failure, Findings, Oracle, RunBytes};
use crate::model::Kernels;
use crate::state::container::{Container, Kind};

/// The checks, with what each says.
pub const CHECKS: [(&str, &str); 10] = [
    ("size", "bytes asked for, written and read are the same, and nothing is written behind them"),
    ("blob", "our own reader takes a blob, and writes it back as it was"),
    ("refusal", "a damaged blob is refused"),
    ("intact", "a blob that is refused changes nothing"),
    ("beside", "without any saving, sequences of one context do not disturb each other"),
    ("copy", "a copied sequence goes on as the original does"),
    ("queued", "a copy that is saved before anything else is decoded has its rows"),
    ("logits", "with the state restored the same tokens give the same logits"),
    ("others", "sequences beside the one that is loaded go on as without it"),
    ("partial", "a partial state restores what removing positions does not"),
];

/// Logits may differ by this share of the largest, where other sums or another order of cells make them.
const TOLERANCE: f32 = 4e-3;

/// Other tokens before make at least this much of a difference.
const DIFFERENCE: f32 = 5e-2;

/// The claims of one case.
pub struct LlamaOracle {
    variant: Variant,
    script: Script,
    log: usize,
}

/// How a claim fared.
enum Fared {
    Holds,
    Broken(String),
    /// It can't be looked at, and why.
    Unknown(String),
}

impl LlamaOracle {
    /// `log` is the buffer with the records.
    pub fn new(variant: Variant, script: Script, log: usize) -> Self {
        LlamaOracle { variant, script, log }
    }

    /// The claims that belong to a check, and how each fares.
    fn fared(&self, check: &str, records: &[Record<'_>], device: &Capabilities) -> Vec<Fared> {
        let looked = Looked { variant: self.variant, calls: &self.script.calls, records };
        let repeats = matches!(device.kernels, Kernels::GgmlCpuAvx | Kernels::GgmlCpuPlain);
        let fared = |claim: &Claim| match claim {
            Claim::Same { check: name, got, want, exactly, of } if *name == check => {
                let exactly = *exactly && repeats;
                Some(looked.values([*of]).map_or_else(|absent| absent, |_| looked.same(*got, *want, exactly)))
            }
            Claim::Differs { got, want } if check == "logits" => Some(looked.differs(*got, *want)),
            Claim::Size { size, save, load } if check == "size" => Some(looked.sizes(*size, *save, *load)),
            Claim::Blob { save } if check == "blob" => Some(looked.blob(*save)),
            Claim::Refused { load, save, .. } if check == "refusal" => Some(looked.refused(*load, *save)),
            Claim::Refused { load, got, want, .. } if check == "intact" => looked.intact(*load, *got, *want),
            _ => None,
        };
        self.script.claims.iter().filter_map(fared).collect()
    }

    /// All checks over these records.
    pub fn checks(&self, log: &[u8], device: &Capabilities) -> Vec<Check> {
        let records = read_records(log, self.script.calls.len());
        let check = |(name, _): &(&'static str, &str)| {
            if records.len() < self.script.calls.len() {
                let (got, want) = (records.len(), self.script.calls.len());
                return Check::failed(name, Failure::new(format!("{got} of {want} calls left a record")));
            }
            let fared = self.fared(name, &records, device);
            let count = fared.len();
            let broken: Vec<&String> =
                fared.iter().filter_map(|f| if let Fared::Broken(what) = f { Some(what) } else { None }).collect();
            if let Some(first) = broken.first() {
                let others =
                    if broken.len() > 1 { format!(" ({} of {count} times)", broken.len()) } else { String::new() };
                return Check::failed(name, Failure::new(format!("{first}{others}")));
            }
            let unknown = fared.iter().find_map(|f| if let Fared::Unknown(why) = f { Some(why) } else { None });
            match unknown {
                Some(why) => Check::not_possible(name, why.clone()),
                None if count == 0 => Check::not_possible(name, "this scenario says nothing of it"),
                None => Check::passed(name),
            }
        };
        CHECKS.iter().map(check).collect()
    }
}

impl Oracle for LlamaOracle {
    fn repeated(&self) -> Vec<usize> {
        Vec::new()
    }

    fn judge(&self, _: &Inputs<'_>, device: &Capabilities, run: &RunBytes<'_>) -> Findings {
        Findings { checks: self.checks(run.buffer(self.log), device), metrics: None }
    }

    fn expected(&self, _: &Inputs<'_>, _: &Capabilities) -> Vec<Expected> {
        Vec::new()
    }
}

/// The records, and what they are of.
struct Looked<'a> {
    variant: Variant,
    calls: &'a [Call],
    records: &'a [Record<'a>],
}

impl Looked<'_> {
    /// The values of calls, unless this build has no function for one.
    fn values<const N: usize>(&self, calls: [usize; N]) -> Result<[i64; N], Fared> {
        let values = calls.map(|call| self.records[call].value);
        match values.contains(&ABSENT) {
            true => Err(Fared::Unknown("this libllama has no function for it".to_owned())),
            false => Ok(values),
        }
    }

    /// Logits of a decoding that succeeded.
    fn logits(&self, call: usize) -> Result<Vec<f32>, Fared> {
        let [value] = self.values([call])?;
        let logits: Vec<f32> = read_f32(self.records[call].bytes).collect();
        match value {
            0 if logits.iter().all(|v| v.is_finite()) && !logits.is_empty() => Ok(logits),
            0 => Err(Fared::Broken(format!("call {call}: logits that are not finite"))),
            other => Err(Fared::Broken(format!("call {call}: llama_decode returned {other}"))),
        }
    }

    /// The largest difference of two decodings and the largest logit.
    fn distance(&self, got: usize, want: usize) -> Result<(f32, f32), Fared> {
        let (got, want) = (self.logits(got)?, self.logits(want)?);
        let difference = got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
        Ok((difference, want.iter().map(|w| w.abs()).fold(0.0, f32::max)))
    }

    fn same(&self, got: usize, want: usize, exactly: bool) -> Fared {
        let (difference, largest) = match self.distance(got, want) {
            Ok(found) => found,
            Err(fared) => return fared,
        };
        let allowed = if exactly { 0.0 } else { TOLERANCE * largest };
        if difference <= allowed {
            return Fared::Holds;
        }
        Fared::Broken(format!(
            "call {got}: logits differ by up to {difference:e} from those of call {want}, allowed {allowed:e}"
        ))
    }

    fn differs(&self, got: usize, want: usize) -> Fared {
        match self.distance(got, want) {
            Ok((difference, largest)) if difference > DIFFERENCE * largest => Fared::Holds,
            Ok((difference, _)) => Fared::Broken(format!(
                "call {got}: logits differ by only {difference:e} from those of call {want}, after other tokens: the \
                 state makes no difference"
            )),
            Err(fared) => fared,
        }
    }

    fn sizes(&self, size: usize, save: usize, load: usize) -> Fared {
        let [asked, written, read] = match self.values([size, save, load]) {
            Ok(values) => values,
            Err(fared) => return fared,
        };
        // What was asked for stands in front of the guard.
        let (_, guard) = self.saved(save);
        if asked != written || written != read {
            return Fared::Broken(format!("{asked} bytes asked for, {written} written, {read} read"));
        }
        if guard != GUARD {
            return Fared::Broken(format!("call {save}: bytes behind the {asked} that were asked for were written to"));
        }
        Fared::Holds
    }

    /// A saved blob, and what lies behind it.
    fn saved(&self, save: usize) -> (&[u8], &[u8]) {
        let bytes = self.records[save].bytes;
        bytes.split_at(bytes.len().saturating_sub(GUARD.len()))
    }

    fn piece(&self, call: usize) -> Piece {
        match &self.calls[call] {
            Call::Save { what, .. } | Call::Load { what, .. } | Call::Size { what, .. } => *what,
            _ => Piece::Whole,
        }
    }

    /// Some blob of one sequence in this log is of the format of May 2026 or later.
    fn is_current(&self) -> bool {
        let is_sequence = |i: &usize| {
            let is_one = |what: Piece| matches!(what, Piece::Sequence(_) | Piece::Partial(_));
            matches!(self.calls[*i], Call::Save { what, .. } if is_one(what)) && self.records[*i].value > 0
        };
        let sequences = (0..self.calls.len()).filter(is_sequence);
        sequences.map(|i| self.saved(i).0).any(|blob| Container::read(Kind::Sequence, blob).is_ok())
    }

    fn blob(&self, save: usize) -> Fared {
        let [_] = match self.values([save]) {
            Ok(values) => values,
            Err(fared) => return fared,
        };
        let blob = self.saved(save).0;
        match read_back(self.variant, self.piece(save), blob) {
            Ok(back) if back == blob => Fared::Holds,
            Ok(back) => {
                let at = back.iter().zip(blob).position(|(a, b)| a != b).unwrap_or(back.len().min(blob.len()));
                Fared::Broken(format!(
                    "call {save}: a blob of {} bytes comes back with other bytes from {at} on",
                    blob.len()
                ))
            }
            Err(_) if !self.is_current() => {
                Fared::Unknown("builds from before May 2026 wrote several formats, of which this is none".to_owned())
            }
            Err(Unread { why, .. }) => Fared::Broken(format!("call {save}: {why}")),
        }
    }

    fn refused(&self, load: usize, save: usize) -> Fared {
        let [value, _] = match self.values([load, save]) {
            Ok(values) => values,
            Err(fared) => return fared,
        };
        let Call::Load { damage: Some(damage), what, .. } = self.calls[load] else { return Fared::Holds };
        let blob = self.saved(save).0;
        let must_be = match damage {
            Damage::Cut(_) => true,
            Damage::Word { .. } => {
                // What a strict reader takes may be loaded: it is another state. And whose a row is may be anybody's.
                if read_back(self.variant, what, blob).is_err() {
                    return Fared::Unknown("our reader does not know the blob without the damage".to_owned());
                }
                matches!(read_back(self.variant, what, &damage.of(blob)), Err(Unread { is_structure: true, .. }))
            }
        };
        match value {
            0 => Fared::Holds,
            _ if !must_be => Fared::Holds,
            read => Fared::Broken(format!(
                "call {load}: a blob of {} bytes ({}) was loaded, {read} bytes of it",
                blob.len(),
                describe(damage)
            )),
        }
    }

    /// Nothing to say where it was not refused.
    fn intact(&self, load: usize, got: usize, want: usize) -> Option<Fared> {
        (self.records[load].value == 0).then(|| self.same(got, want, false))
    }
}

fn describe(damage: Damage) -> String {
    match damage {
        Damage::Cut(missing) => format!("the last {missing} missing"),
        Damage::Word { at, add } => format!("{} added to the number at {at}", add.cast_signed()),
    }
}
