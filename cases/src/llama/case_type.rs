//! The op `llama_state`.

use std::sync::Arc;

use super::judge::LlamaOracle;
use super::script::{Scenario, Script};
use super::weights::{Arch, Variant, gguf};
use crate::cost::Cost;
use crate::draw::Draw;
use crate::formats::ElemType;
use crate::id::{Reader, Writer};
use crate::inputs::Inputs;
use crate::judge::{Capabilities, Oracle};
use crate::model::Model;
use crate::op::{CaseType, Op, Program};
use crate::plan::{Buffer, Step};

/// Room for the records of a case: the longest scenario has a few hundred KB of blobs.
const LOG_BYTES: usize = 8 << 20;

/// Buffers by position.
const MODEL: usize = 0;
const LOG: usize = 1;

/// Saving and loading by a real libllama.
pub const LLAMA: Op = Op {
    name: "llama_state",
    // No device of our own has a libllama.
    groups: &[],
    parse,
    draw,
    named: &[],
};

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct LlamaCase {
    variant: Variant,
    scenario: Scenario,
}

/// Every architecture in every scenario, and some with other types of K and V: the sections of their ids.
pub fn all() -> impl Iterator<Item = String> {
    let plain =
        Scenario::ALL.iter().flat_map(|scenario| Arch::ALL.iter().map(move |arch| (*scenario, arch.to_string())));
    let typed = [Scenario::Dirty, Scenario::Holes];
    let typed = typed.into_iter().flat_map(|scenario| TYPED.iter().map(move |params| (scenario, (*params).to_owned())));
    plain.chain(typed).map(|(scenario, params)| format!("{}/a={params}/do={scenario}", LLAMA.name))
}

/// Architectures with types of K and V.
const TYPED: [&str; 3] = ["llama,kt=f32,vt=f32", "swa,kt=bf16,vt=f32", "hybrid,vt=bf16"];

fn parse(params: &str, recipe: &str) -> Result<Arc<dyn CaseType>, String> {
    let (mut p, mut r) = (Reader::new("params", params)?, Reader::new("recipe", recipe)?);
    let arch = p.take("a")?;
    let types = [ty(&mut p, "kt", arch)?, ty(&mut p, "vt", arch)?];
    let case = LlamaCase { variant: Variant { arch, types }, scenario: r.take("do")? };
    p.finish()?;
    r.finish()?;
    Ok(Arc::new(case))
}

/// The type of K or V. Blocks would need wider heads.
fn ty(p: &mut Reader<'_>, key: &'static str, arch: Arch) -> Result<ElemType, String> {
    match p.take_or(key, ElemType::F16)? {
        ElemType::F16 => Ok(ElemType::F16),
        other if arch == Arch::Mamba => Err(format!("{key}={other}: a recurrent model has no K and V")),
        known @ (ElemType::F32 | ElemType::Bf16) => Ok(known),
        other => Err(format!("{key}={other}: no cache of these models has it, only f32, f16, bf16")),
    }
}

fn draw(d: &mut Draw) -> Arc<dyn CaseType> {
    Arc::new(LlamaCase { variant: Variant::of(d.pick(Arch::ALL)), scenario: d.pick(Scenario::ALL) })
}

impl CaseType for LlamaCase {
    fn op(&self) -> &'static str {
        LLAMA.name
    }

    fn params(&self) -> String {
        let mut p = Writer::default();
        p.put("a", self.variant.arch);
        for (key, ty) in ["kt", "vt"].into_iter().zip(self.variant.types) {
            p.put_unless(key, ty, ElemType::F16);
        }
        p.finish()
    }

    fn recipe(&self) -> String {
        let mut r = Writer::default();
        r.put("do", self.scenario);
        r.finish()
    }

    fn program(&self, seed: u64) -> Program {
        // The size does not depend on the numbers in the file.
        let model = Buffer { name: "model".to_owned(), bytes: gguf(self.variant.arch, seed).len(), is_given: true };
        let log = Buffer { name: "log".to_owned(), bytes: LOG_BYTES, is_given: false };
        let calls = Script::new(self.variant, self.scenario, seed).calls;
        let steps = vec![Step::Llama { model: MODEL, log: LOG, calls }];
        Program { tensors: Vec::new(), buffers: vec![model, log], steps, ..Program::default() }
    }

    fn fill_row(&self, _: u64, _: usize, _: [usize; 3], _: &mut [u8]) {}

    fn fill_margin(&self, _: u64, _: usize, _: &mut [u8]) {}

    fn fill_buffer(&self, seed: u64, _: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&gguf(self.variant.arch, seed));
    }

    fn cost(&self) -> Cost {
        Cost { operations: 0, input_elements: 1 << 17, oracle_bytes: LOG_BYTES as u64 }
    }

    fn group(&self) -> &'static str {
        self.variant.arch.word()
    }

    fn shape_class(&self) -> &'static str {
        self.variant.arch.word()
    }

    fn binds_foreign_devices(&self) -> bool {
        true
    }

    fn model(&self, _: &Capabilities) -> Option<Model> {
        None
    }

    fn oracle(&self, seed: u64, _: &Inputs<'_>) -> Box<dyn Oracle> {
        Box::new(LlamaOracle::new(self.variant, Script::new(self.variant, self.scenario, seed), LOG))
    }

    fn describe(&self, seed: u64, _: &Inputs<'_>) -> Vec<String> {
        let calls = Script::new(self.variant, self.scenario, seed).calls;
        calls.iter().enumerate().map(|(i, call)| format!("{i:<9} {call:?}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::case::Case;

    #[test]
    fn ids_round_trip_and_refuse() {
        for id in ["llama_state/a=mamba/do=holes/v1-7", "llama_state/a=llama,kt=bf16/do=fresh/v1-1"] {
            let case: Case = id.parse().unwrap();
            assert_eq!(case.id(), id);
            assert_eq!(case.plan().buffers[0].bytes % 32, 0);
        }
        for (id, why) in [
            ("llama_state/a=bert/do=fresh/v1-1", "is no architecture; known: llama, moe, mamba, swa, hybrid"),
            ("llama_state/a=llama/do=nothing/v1-1", "is no scenario; known: fresh"),
            (
                "llama_state/a=llama,kt=q8_0/do=fresh/v1-1",
                "kt=q8_0: no cache of these models has it, only f32, f16, bf16",
            ),
            ("llama_state/a=mamba,vt=f32/do=fresh/v1-1", "vt=f32: a recurrent model has no K and V"),
            ("llama_state/a=llama/do=fresh,n=1/v1-1", "unknown key 'n'"),
        ] {
            let e = id.parse::<Case>().unwrap_err().to_string();
            assert!(e.contains(why), "{id}: {e}");
        }
    }
}
