//! A device's kernels against naive host loops: the same for every backend of our own. The test that includes this opens
//! the device.

pub(crate) mod moves;
pub(crate) mod mul_mat_id;
pub(crate) mod routing;
pub(crate) mod sorts;

use conform_cases::plan::Plan;
use conform_harness::backend::Device;

use crate::device;

const POISON: u32 = 0xFFFF_FFFF;

/// Poisons an output, runs everything and reads the output's allocation.
fn run(device: &mut dyn Device, plan: &Plan, out: usize) -> Vec<u8> {
    let mut bytes = POISON.to_le_bytes().repeat(plan.tensors[out].parent_bytes() / 4);
    device.write(out, 0, &bytes).unwrap();
    device.run(0..plan.steps.len()).unwrap();
    device.read(out, 0, &mut bytes).unwrap();
    bytes
}
