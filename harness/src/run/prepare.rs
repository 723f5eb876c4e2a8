//! A case made ready: plan, inputs in shared memory, and the oracle's answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use conform_cases::case::Case;
use conform_cases::inputs::{Decoded, Inputs};
use conform_cases::judge::{
    Capabilities, Execution, Judgement, Oracle, REPEATS, accesses_check, decoded_check, guards_check, judge, poisons,
    without_right_values,
};
use conform_cases::plan::{Layout, Plan};

use super::memory;
use crate::worker::protocol::Observed;
use crate::worker::{Job, Memory, Pooled, Shared};

/// Inputs and right values of one case, shared by all devices.
pub struct Prepared {
    /// The case.
    pub case: Case,
    /// What it unfolds to.
    pub plan: Plan,
    /// Where its bytes lie.
    pub layout: Layout,
    /// What each of its runs begins with.
    poisons: Vec<u32>,
    /// Its inputs, filled.
    pub inputs: Pooled,
    memory: Memory,
    /// Time spent on generating them.
    pub generate: Duration,
    /// The devices it will be judged on.
    devices: Vec<Capabilities>,
    /// One for all devices, or one for each way in which builds decoded the weights.
    answers: Mutex<Vec<Arc<Answer>>>,
}

/// The right values of a case.
pub struct Answer {
    /// What a build decoded; nothing where the weights are decoded here.
    decoded: Decoded,
    /// The right values.
    pub oracle: Box<dyn Oracle>,
    /// Time spent on computing them.
    pub time: Duration,
}

/// What was left behind, judged.
pub struct Judged {
    /// The outcome.
    pub judgement: Judgement,
    /// Time spent on the right values, once for all devices that share them.
    pub oracle: Duration,
    /// Time spent on comparing.
    pub judge: Duration,
}

impl Prepared {
    /// Generates a case's inputs. The error is one line: this machine has not the memory for it. What judging the devices
    /// needs is computed with the right values.
    pub fn new(case: &Case, devices: Vec<Capabilities>, memory: &Memory) -> Result<Self, String> {
        Self::repeated(case, devices, memory, REPEATS)
    }

    /// The same for a case that is run so many times, at least once.
    pub fn repeated(case: &Case, devices: Vec<Capabilities>, memory: &Memory, repeats: usize) -> Result<Self, String> {
        let started = Instant::now();
        let plan = case.plan();
        let poisons = poisons(&plan, repeats);
        let layout = Layout::new(&plan, poisons.len());
        fits_in_memory(case, &layout)?;
        let mut inputs = memory.inputs.take(layout.input_bytes).map_err(|e| e.to_string())?;
        case.fill_all(&plan, &layout, inputs.bytes_mut());
        Ok(Prepared {
            case: case.clone(),
            plan,
            layout,
            poisons,
            inputs,
            memory: memory.clone(),
            generate: started.elapsed(),
            devices,
            answers: Mutex::default(),
        })
    }

    /// The inputs as the case's own code sees them.
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs::new(&self.plan, &self.layout, self.inputs.bytes())
    }

    /// Memory that a device needs for it, about: weights may be kept in two layouts.
    pub fn device_bytes(&self) -> u64 {
        self.plan.tensors.iter().map(|t| 2 * t.parent_bytes() as u64).sum()
    }

    /// Room for what an execution leaves behind. The error is one line.
    pub fn results(&self) -> Result<Pooled, String> {
        self.memory.results.take(self.layout.result_bytes).map_err(|e| e.to_string())
    }

    /// The job of executing it. A device may take the patience for compiling and waiting, and ten times what the
    /// slowest healthy one needs.
    pub fn job<'a>(&'a self, results: &'a mut Shared, patience: Duration) -> Job<'a> {
        let allowance = self.case.body().cost().allowance_seconds() * self.poisons.len() as f64;
        Job {
            plan: &self.plan,
            layout: &self.layout,
            poisons: &self.poisons,
            inputs: &self.inputs,
            results,
            deadline: patience.saturating_add(Duration::from_secs_f64(allowance)),
            known_logs: &[],
        }
    }

    /// True if the right values depend on what a build makes of the weights.
    pub fn is_decoded_by_build(&self) -> bool {
        self.layout.decoded.iter().any(Option::is_some)
    }

    /// Judges what an execution left behind, and what the device has seen meanwhile.
    pub fn judge(&self, device: &Capabilities, results: &Shared, observed: &Observed) -> Judged {
        let decoded = Decoded::read(&self.plan, &self.layout, results.bytes());
        let execution = |decoded| Execution {
            plan: &self.plan,
            layout: &self.layout,
            inputs: self.inputs.bytes(),
            results: results.bytes(),
            decoded,
        };
        let started = Instant::now();
        let check = match decoded_check(&self.plan, &decoded) {
            Some(check) if check.failure().is_some() => {
                let judgement = without_right_values(device, check, &execution(&decoded));
                return Judged { judgement, oracle: Duration::ZERO, judge: started.elapsed() };
            }
            check => check,
        };
        // Waits for the right values, so that their time is not counted as the judge's.
        let answer = self.answer(decoded);
        let started = Instant::now();
        let mut judgement = judge(device, &*answer.oracle, check, &execution(&answer.decoded));
        let has_kernels = !self.plan.tensors.is_empty() && self.plan.steps.iter().any(|step| !step.moves_bytes());
        judgement.checks.extend(has_kernels.then(|| guards_check(device, observed.guards.as_ref())));
        judgement.checks.extend(accesses_check(device, observed.complaints.as_ref()));
        Judged { judgement, oracle: answer.time, judge: started.elapsed() }
    }

    /// The right values where weights are what a build decoded (nothing, where they are decoded here), computed at the
    /// first call. Builds that decode to the same bits share them.
    pub fn answer(&self, decoded: Decoded) -> Arc<Answer> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = answers.iter().find(|a| a.decoded == decoded) {
            return known.clone();
        }
        let started = Instant::now();
        let inputs = self.inputs().with_decoded(&decoded);
        let oracle = self.case.oracle(&inputs);
        self.devices.iter().for_each(|device| oracle.prepare(&inputs, device));
        let answer = Arc::new(Answer { decoded, oracle, time: started.elapsed() });
        answers.push(answer.clone());
        answer
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

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(id: &str) -> Prepared {
        Prepared::new(&id.parse().unwrap(), vec![Capabilities::OWN], &Memory::default()).unwrap()
    }

    #[test]
    fn one_oracle_serves_all_devices_and_builds_that_decode_alike() {
        let plain = prepared("mul_mat_id/w=f32,x=f32,e=2,u=1,m=3,n=2,k=5/route=shuffle,data=normal/v1-1");
        let early = plain.answer(Decoded::default());
        plain.judge(&Capabilities::OWN, &plain.results().unwrap(), &Observed::default());
        assert!(!plain.is_decoded_by_build());
        assert_eq!(plain.answers.lock().unwrap().len(), 1);
        assert!(Arc::ptr_eq(&early, &plain.answers.lock().unwrap()[0]));

        let by_build = prepared("mul_mat_id/w=q2_0,x=f32,e=2,u=1,m=3,n=2,k=64/route=shuffle,data=normal/v1-1");
        assert!(by_build.is_decoded_by_build());
        let mut results = by_build.results().unwrap();
        for (change, answers) in [(1.0f32, 1), (1.0, 1), (2.0, 2)] {
            let at = by_build.layout.decoded[0].unwrap();
            results.bytes_mut()[at..at + 4].copy_from_slice(&change.to_le_bytes());
            by_build.judge(&Capabilities::OWN, &results, &Observed::default());
            assert_eq!(by_build.answers.lock().unwrap().len(), answers);
        }
    }

    #[test]
    fn values_that_are_not_finite_leave_nothing_to_compare() {
        let by_build = prepared("mul_mat_id/w=q2_0,x=f32,e=2,u=1,m=3,n=2,k=64/route=shuffle,data=normal/v1-1");
        let mut results = by_build.results().unwrap();
        results.poison(&by_build.layout, &by_build.poisons);
        let judged = by_build.judge(&Capabilities::OWN, &results, &Observed::default());
        let failed: Vec<_> = judged.judgement.failures().map(|c| c.name.as_str()).collect();
        // Nothing was read back either.
        assert_eq!(failed, ["decoded", "inputs"]);
        assert!(by_build.answers.lock().unwrap().is_empty());
    }
}
