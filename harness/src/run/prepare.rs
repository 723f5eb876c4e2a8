//! A case made ready: plan, inputs in shared memory, and the oracle's answer.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use conform_cases::case::Case;
use conform_cases::inputs::Inputs;
use conform_cases::judge::{Capabilities, Execution, Judgement, Oracle, POISONS, judge};
use conform_cases::plan::{Layout, Plan};

use super::memory;
use crate::worker::{Job, Shared};

/// Inputs and right values of one case, shared by all devices.
pub struct Prepared {
    /// The case.
    pub case: Case,
    /// What it unfolds to.
    pub plan: Plan,
    /// Where its bytes lie.
    pub layout: Layout,
    /// Its inputs, filled.
    pub inputs: Shared,
    /// Time spent on generating them.
    pub generate: Duration,
    oracle: OnceLock<(Box<dyn Oracle>, Duration)>,
}

impl Prepared {
    /// Generates a case's inputs. The error is one line: this machine has not the memory for it.
    pub fn new(case: &Case) -> Result<Self, String> {
        let started = Instant::now();
        let plan = case.plan();
        let layout = Layout::new(&plan, POISONS.len());
        fits_in_memory(case, &layout)?;
        let mut inputs = Shared::create(layout.input_bytes).map_err(|e| e.to_string())?;
        case.fill_all(&plan, &layout, inputs.bytes_mut());
        Ok(Prepared { case: case.clone(), plan, layout, inputs, generate: started.elapsed(), oracle: OnceLock::new() })
    }

    /// The inputs as the case's own code sees them.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs::new(&self.plan, &self.layout, self.inputs.bytes())
    }

    /// Room for what an execution leaves behind. The error is one line.
    pub fn results(&self) -> Result<Shared, String> {
        Shared::create(self.layout.result_bytes).map_err(|e| e.to_string())
    }

    /// The job of executing it. A device may take the patience for compiling and waiting, and ten times what the
    /// slowest healthy one needs.
    pub fn job<'a>(&'a self, results: &'a mut Shared, patience: Duration) -> Job<'a> {
        let allowance = self.case.body().cost().allowance_seconds() * POISONS.len() as f64;
        Job {
            plan: &self.plan,
            layout: &self.layout,
            poisons: &POISONS,
            inputs: &self.inputs,
            results,
            deadline: patience.saturating_add(Duration::from_secs_f64(allowance)),
        }
    }

    /// Judges what an execution left behind.
    pub fn judge(&self, device: &Capabilities, results: &Shared) -> Judgement {
        let execution =
            Execution { plan: &self.plan, layout: &self.layout, inputs: self.inputs.bytes(), results: results.bytes() };
        judge(device, self.oracle().0, &execution)
    }

    /// The right values, computed at the first call, and how long that took.
    pub fn oracle(&self) -> (&dyn Oracle, Duration) {
        self.oracle_for([])
    }

    /// The same, with all that judging these devices needs.
    pub fn oracle_for<'a>(&self, devices: impl IntoIterator<Item = &'a Capabilities>) -> (&dyn Oracle, Duration) {
        let (oracle, time) = self.oracle.get_or_init(|| {
            let started = Instant::now();
            let oracle = self.case.body().oracle(&self.inputs());
            devices.into_iter().for_each(|device| oracle.prepare(&self.inputs(), device));
            (oracle, started.elapsed())
        });
        (&**oracle, *time)
    }
}

/// Refuses a case whose bytes and right values would not fit.
fn fits_in_memory(case: &Case, layout: &Layout) -> Result<(), String> {
    let needed = (layout.input_bytes + layout.result_bytes) as u64 + case.body().cost().oracle_bytes;
    let Some(available) = memory::available() else { return Ok(()) };
    // The rest is for everything else that runs meanwhile, a device's copy of the inputs among it.
    if needed > available / 10 * 7 {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        return Err(format!(
            "the case needs about {:.1} GiB here, {:.1} GiB are available",
            gib(needed),
            gib(available)
        ));
    }
    Ok(())
}
