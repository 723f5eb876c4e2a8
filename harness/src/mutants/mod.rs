//! Mutants: small faults put into a device on purpose, to measure what the cases catch.
//!
//! Each is modelled on a bug that somebody reported. A fault in kernels is a
//! named edit of their source, made before it is compiled, or for the embedded
//! device, for the engine that saves and loads state and for the rules that tell
//! devices apart a table of stages with an entry swapped: the sources themselves stay as they are. A mutant's id travels to a worker in the
//! protocol's `open`; everything else about it is known on both sides.
//!
//! - [`table`]: the mutants; a new one is one entry there
//! - [`hunt`]: runs cases until one of them tells a mutant from the device it was made of
//! - [`habit`]: would the usual test of backends have seen it?
//! - `plain`: slow products with room for a fault, for mutants of the embedded device

pub mod habit;
pub mod hunt;
mod plain;
pub mod table;
mod zeros;

use std::borrow::Cow;

use conform_cases::case::Case;
use conform_cases::model::Kernels;
use conform_cases::profile::Profile;
use conform_cases::state;

use crate::backend::cpu::Stages;
use crate::backend::routing::Reuse;
use crate::backend::{Capabilities, Device, DeviceError, DeviceInfo, Driver};
use crate::identity::Rules;

/// A fault with a name.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// What it is called: path-safe, and never changed.
    pub id: &'static str,
    /// The bug it is modelled on: its line in the list of public bugs, and where it was reported.
    pub bug: &'static str,
    /// What is wrong, in one line.
    pub what: &'static str,
    /// The only op that it can harm.
    pub op: &'static str,
    /// How it is made.
    pub fault: Fault,
}

/// The kinds of mutants.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// In kernels of our own.
    Kernels(Edits),
    /// In our OpenCL kernels, of which no result tells: only a device that watches each access shows it.
    Unseen(&'static [Edit]),
    /// In the rule by which devices of our own use sorted slots again.
    Routing(Reuse),
    /// Outputs are zero, whatever was computed: what a judge must see under every precision model.
    Zeros {
        /// Whose kernels the device is judged as.
        kernels: Kernels,
        /// The precision model, by its name.
        model: &'static str,
    },
    /// In the engine that saves and loads state, which the parent runs: the device itself is as it was.
    State(fn(&mut state::stages::Stages)),
    /// In the rules by which devices are told apart: it is hunted with tables of devices, without any device.
    Identity(fn(&mut Rules)),
}

/// Stands for all ops about state, which have one engine.
pub const STATE: &str = "state";

/// A case that costs more, in operations and elements, takes a device that watches each access seconds.
const MOST_WATCHED: u64 = 20_000;

/// Stands for telling devices apart, which is no op of any device.
pub const IDENTITY: &str = "identity";

/// The same fault in every language that kernels of our own are written in; where a language has no entry, its
/// devices can't have the fault.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edits {
    /// Of OpenCL C. A device uses one of several forms of some kernels: those that it doesn't are edited in vain.
    pub opencl: &'static [Edit],
    /// Of CUDA C.
    pub cuda: &'static [Edit],
    /// Of the embedded device's table.
    pub rust: Option<fn(Stages) -> Stages>,
}

/// One place in one kernel file, replaced.
#[derive(Clone, Copy, Debug)]
pub struct Edit {
    /// The file's name.
    pub file: &'static str,
    /// What stands there, exactly once.
    pub find: &'static str,
    /// What takes its place.
    pub replace: &'static str,
}

impl Edit {
    /// The edited text. The error is one line.
    fn apply(&self, text: &str) -> Result<String, String> {
        match text.matches(self.find).count() {
            1 => Ok(text.replacen(self.find, self.replace, 1)),
            n => Err(format!("{} holds {:?} {n} times, an edit must find it once", self.file, self.find)),
        }
    }
}

/// Makes all edits in files with these names. The error is one line.
pub(crate) fn edit(edits: &[Edit], files: &mut [(String, &mut Cow<'static, str>)]) -> Result<(), String> {
    for edit in edits {
        let file = files.iter_mut().find(|(name, _)| name == edit.file);
        let (_, text) = file.ok_or_else(|| format!("no kernel file is called {}", edit.file))?;
        **text = Cow::Owned(edit.apply(text)?);
    }
    Ok(())
}

/// The mutant of this name.
pub fn find(id: &str) -> Option<&'static Mutant> {
    table::all().find(|m| m.id == id)
}

/// Opens a device that has the fault of this name. The error is one line.
pub fn open(driver: &dyn Driver, key: &str, id: &str) -> Result<Box<dyn Device>, DeviceError> {
    let mutant = find(id).ok_or_else(|| DeviceError(format!("this conform has no mutant '{id}'")))?;
    match &mutant.fault {
        Fault::Kernels(edits) => open_edited(driver, key, id, edits),
        Fault::Unseen(opencl) => open_edited(driver, key, id, &Edits { opencl, ..Edits::default() }),
        Fault::Zeros { .. } => Ok(Box::new(zeros::Zeros::new(driver.open(key)?))),
        Fault::Routing(reuse) => driver.open_reusing(key, *reuse),
        Fault::State(_) | Fault::Identity(_) => driver.open(key),
    }
}

fn open_edited(driver: &dyn Driver, key: &str, id: &str, edits: &Edits) -> Result<Box<dyn Device>, DeviceError> {
    driver.open_mutant(key, edits).map_err(|DeviceError(why)| {
        // Which of many mutants it was stands nowhere else.
        DeviceError(format!("mutant {id}: {why}"))
    })
}

impl Mutant {
    /// Whether the device runs anything that the fault is in, and can show it.
    pub fn applies(&self, device: &DeviceInfo) -> bool {
        (device.capabilities.watched || !self.is_unseen()) && self.fits(device)
    }

    /// Whether no result tells of it.
    pub fn is_unseen(&self) -> bool {
        matches!(self.fault, Fault::Unseen(_))
    }

    /// Whether the device runs anything that the fault is in.
    pub fn fits(&self, device: &DeviceInfo) -> bool {
        let kernels = device.capabilities.kernels;
        match &self.fault {
            Fault::Kernels(edits) => match device.backend.as_str() {
                "cpu" | "fake" => edits.rust.is_some(),
                "opencl" => edits.opencl.iter().any(|edit| uses(kernels, edit.file)),
                "cuda" => edits.cuda.iter().any(|edit| uses(kernels, edit.file)),
                _ => false,
            },
            Fault::Unseen(edits) => device.backend == "opencl" && edits.iter().any(|edit| uses(kernels, edit.file)),
            Fault::Routing(_) => ["cpu", "fake", "opencl", "cuda"].contains(&device.backend.as_str()),
            // The embedded device stands in for those that are rarely there.
            Fault::Zeros { kernels: wanted, .. } => share_models(*wanted, kernels) || device.backend == "cpu",
            Fault::State(_) => true,
            Fault::Identity(_) => false,
        }
    }

    /// What the device is judged as.
    pub fn judged_as(&self, device: &DeviceInfo) -> Capabilities {
        match self.fault {
            Fault::Zeros { kernels, .. } if !share_models(kernels, device.capabilities.kernels) => {
                Capabilities { kernels, ..device.capabilities }
            }
            _ => device.capabilities,
        }
    }

    /// Whether it is caught where this check fails on a device judged as this. Zeros are there to be seen by bounds, and
    /// not as no NaN; what no result tells of is there to be seen by whoever watches.
    fn counts(&self, check: &str, device: &Capabilities) -> bool {
        match self.fault {
            Fault::Zeros { .. } => ["exact", "values"].contains(&check),
            Fault::Unseen(_) => check == "accesses" || !device.watched,
            Fault::Kernels(_) | Fault::Routing(_) | Fault::State(_) | Fault::Identity(_) => true,
        }
    }

    /// Whether a case may show it on a device judged as this. Others are not worth running.
    pub fn may_show(&self, case: &Case, device: &Capabilities) -> bool {
        let is_of_model = match self.fault {
            Fault::Zeros { model, .. } => case.body().model(device).is_some_and(|m| m.name == model),
            _ => true,
        };
        // Whoever watches each access interprets kernels, a thousand times slower.
        let cost = case.body().cost();
        let is_quick = !device.watched || cost.operations + cost.input_elements <= MOST_WATCHED;
        let op = case.body().op();
        let is_of_op = if self.op == STATE { state::case_type::is_state(op) } else { op == self.op };
        is_of_op && is_of_model && is_quick
    }

    /// The cases that it is hunted with, in order.
    pub fn profile(&self) -> Profile {
        if self.op == STATE { Profile::State } else { Profile::Full }
    }

    /// A case as it runs with the fault.
    fn with_fault(&self, case: &Case) -> Case {
        let Fault::State(change) = self.fault else { return case.clone() };
        let mut stages = state::stages::Stages::default();
        change(&mut stages);
        case.with_stages(stages).unwrap_or_else(|| case.clone())
    }
}

/// Whether models of the same names apply to both. What a device is judged as stays its own.
fn share_models(wanted: Kernels, has: Kernels) -> bool {
    use Kernels::{GgmlCpuAvx, GgmlCpuPlain, GgmlRepack, GgmlVulkan, GgmlVulkanNvidia, GgmlVulkanTilesFromTwo};
    match wanted {
        GgmlRepack => matches!(has, GgmlRepack | GgmlCpuAvx | GgmlCpuPlain),
        GgmlVulkan => matches!(has, GgmlVulkan | GgmlVulkanNvidia | GgmlVulkanTilesFromTwo),
        _ => wanted == has,
    }
}

/// Whether a device with these kernels runs a file. Some files stand for each other.
fn uses(kernels: Kernels, file: &str) -> bool {
    let half = matches!(kernels, Kernels::OwnHalf | Kernels::OwnHalfSubgroups);
    let subgroups = matches!(kernels, Kernels::OwnSubgroups | Kernels::OwnHalfSubgroups);
    let tensor = kernels == Kernels::OwnTensor;
    match file {
        "gemm.cl" => !half,
        "gemm_half.cl" => half,
        "gemv.cl" => !subgroups,
        "gemv_subgroups.cl" => subgroups,
        "gemm.cu" | "reorder.cu" => !tensor,
        "tensor.cu" => tensor,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{cuda, opencl};

    /// Faults of kernels, with their ids.
    fn edits() -> impl Iterator<Item = (&'static Mutant, Edits)> {
        table::all().filter_map(|m| match m.fault {
            Fault::Kernels(edits) => Some((m, edits)),
            Fault::Unseen(opencl) => Some((m, Edits { opencl, ..Edits::default() })),
            Fault::Zeros { .. } | Fault::Routing(_) | Fault::State(_) | Fault::Identity(_) => None,
        })
    }

    #[test]
    fn every_edit_still_applies_and_changes_something() {
        for (mutant, edits) in edits() {
            let id = mutant.id;
            if !edits.opencl.is_empty() {
                let edited = opencl::edited(edits.opencl).unwrap_or_else(|why| panic!("{id}: {why}"));
                assert!(edited.iter().zip(&opencl::SOURCES).any(|(e, s)| e.text != s.text), "{id}");
            }
            if !edits.cuda.is_empty() {
                let edited = cuda::edited(edits.cuda).unwrap_or_else(|why| panic!("{id}: {why}"));
                assert!(edited.iter().zip(&cuda::SOURCES).any(|(e, s)| e.text != s.text), "{id}");
            }
            assert!(edits.rust.is_some() || !edits.opencl.is_empty() || !edits.cuda.is_empty(), "{id} has no fault");
        }
    }

    #[test]
    fn an_edit_that_does_not_apply_is_told() {
        let edit = |file, find| opencl::edited(&[Edit { file, find, replace: "x" }]).unwrap_err();
        assert_eq!(
            edit("gemm.cl", "no such text"),
            "gemm.cl holds \"no such text\" 0 times, an edit must find it once"
        );
        assert!(edit("gemm.cl", "barrier(").contains(" times, an edit must find it once"));
        assert_eq!(edit("gem.cl", "x"), "no kernel file is called gem.cl");
        assert!(cuda::edited(&[Edit { file: "mxfp4.clh", find: "e", replace: "x" }]).is_err());
    }

    #[test]
    fn a_header_is_edited_in_every_file_that_includes_it() {
        let fault = Edit { file: "mxfp4.clh", find: "e << 23", replace: "e << 22" };
        let edited = opencl::edited(&[fault]).unwrap();
        let changed = edited.iter().filter(|s| s.text.contains("e << 22")).map(|s| s.name);
        assert_eq!(changed.collect::<Vec<_>>(), ["gemm", "gemm_half", "gemv", "gemv_subgroups"]);
        assert!(edited.iter().all(|s| !s.text.contains("e << 23")));
    }

    #[test]
    fn names_are_unique_and_fit_a_shell() {
        let mut ids: Vec<&str> = table::all().map(|m| m.id).collect();
        assert!(ids.iter().all(|id| id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')));
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn a_fault_is_put_into_devices_that_can_have_it() {
        let open = |driver: &dyn Driver, key, id| super::open(driver, key, id).map(|_| ()).map_err(|e| e.0);
        let cpu = crate::backend::cpu::CpuDriver;
        assert_eq!(open(&cpu, "cpu", "m1-once-per-token"), Ok(()));
        assert_eq!(open(&cpu, "cpu", "zeros-f32"), Ok(()));
        assert_eq!(open(&cpu, "cpu", "m77"), Err("this conform has no mutant 'm77'".to_owned()));
        assert!(open(&cpu, "cpu-1", "m1-once-per-token").unwrap_err().contains("the only device is cpu"));
        let why = open(&cpu, "cpu", "a43-ids-overwritten").unwrap_err();
        assert_eq!(why, "mutant a43-ids-overwritten: it swaps no stage");
        let why = open(&crate::backend::ggml::GgmlDriver, "ggml-x-cpu", "m1-once-per-token").unwrap_err();
        assert!(why.ends_with("its kernels are not ours to edit"), "{why}");
    }

    fn info(backend: &str, kernels: Kernels) -> DeviceInfo {
        DeviceInfo {
            key: format!("{backend}-0"),
            backend: backend.to_owned(),
            name: String::new(),
            driver: String::new(),
            properties: Default::default(),
            identity: crate::identity::Claims::new(backend, 0, crate::identity::Kind::Unknown),
            capabilities: Capabilities { kernels, ..Capabilities::OWN },
        }
    }

    #[test]
    fn what_no_result_tells_is_for_devices_that_watch() {
        let unseen: Vec<_> = table::all().filter(|m| m.is_unseen()).collect();
        assert!(!unseen.is_empty());
        let mut watched = info("opencl", Kernels::Own);
        watched.capabilities.watched = true;
        for mutant in unseen {
            assert!(mutant.applies(&watched), "{}", mutant.id);
            let plain = info("opencl", Kernels::Own);
            assert!(mutant.fits(&plain) && !mutant.applies(&plain), "{}", mutant.id);
            assert!(!mutant.fits(&info("cuda", Kernels::Own)), "{}", mutant.id);
            let counts = |check| mutant.counts(check, &watched.capabilities);
            assert!(counts("accesses") && !counts("values"), "{}", mutant.id);
            // So that one that spoils a result is found out.
            assert!(mutant.counts("values", &plain.capabilities), "{}", mutant.id);
        }
        assert!(find("m7-no-barrier").unwrap().applies(&watched));
    }

    #[test]
    fn forms_of_kernels_decide_what_applies() {
        let applies = |id, backend, kernels| find(id).unwrap().applies(&info(backend, kernels));
        assert!(applies("a38-stale-sum", "opencl", Kernels::Own));
        assert!(!applies("a38-stale-sum", "opencl", Kernels::OwnSubgroups));
        assert!(applies("m5-padding-is-slot-0", "opencl", Kernels::OwnHalf));
        assert!(applies("m7-no-barrier", "cuda", Kernels::OwnTensor) && applies("m7-no-barrier", "cuda", Kernels::Own));
        assert!(!applies("m3-counters-kept", "cuda", Kernels::Own));
        assert!(!applies("m1-once-per-token", "ggml", Kernels::GgmlVulkan));
        assert!(applies("zeros-vulkan-tiles", "ggml", Kernels::GgmlVulkanTilesFromTwo));
        assert!(!applies("zeros-half", "opencl", Kernels::Own) && applies("zeros-half", "cpu", Kernels::Own));
    }

    /// Cases of other ops are not run, so a fault may be in files of its own op alone.
    #[test]
    fn edits_stay_in_the_files_of_their_op() {
        for (mutant, edits) in edits() {
            for edit in edits.opencl.iter().chain(edits.cuda) {
                let stem = edit.file.split('.').next().unwrap_or_default();
                let op = match stem {
                    "argsort" | "top_k" => stem,
                    "rows" | "common" => "",
                    // `fill` clears counters of routing; sorts only have their scratch filled by it, once.
                    _ => "mul_mat_id",
                };
                assert_eq!(op, mutant.op, "{}: {}", mutant.id, edit.file);
            }
        }
    }
}
