//! The smallest correct device: plain memory and a sort. It is here so that the fake driver needs no other backend.

use std::ops::Range;

use conform_cases::formats::read_f32;
use conform_cases::plan::{Order, Plan, Step};

use crate::backend::{Capabilities, Device, DeviceError, DeviceInfo, LoadError};

pub(super) struct Memory {
    info: DeviceInfo,
    plan: Option<Plan>,
    tensors: Vec<Vec<u8>>,
}

impl Default for Memory {
    fn default() -> Self {
        let info = DeviceInfo {
            key: "memory".into(),
            backend: "memory".into(),
            name: "plain memory".into(),
            driver: "none".into(),
            properties: Default::default(),
            capabilities: Capabilities {
                own_kernels: true,
                readable_inputs: true,
                deterministic: true,
                ..Default::default()
            },
        };
        Memory { info, plan: None, tensors: Vec::new() }
    }
}

impl Memory {
    fn part(&mut self, tensor: usize, offset: usize, len: usize) -> Result<&mut [u8], DeviceError> {
        let bytes = self.tensors.get_mut(tensor).and_then(|t| t.get_mut(offset..offset.checked_add(len)?));
        bytes.ok_or_else(|| DeviceError(format!("no bytes {offset}+{len} in tensor {tensor}")))
    }
}

impl Device for Memory {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn load(&mut self, plan: &Plan) -> Result<(), LoadError> {
        if plan.steps.iter().any(|s| !matches!(s, Step::Argsort { .. })) {
            return Err(LoadError::Unsupported("plain memory can only sort".into()));
        }
        self.tensors = plan.tensors.iter().map(|t| vec![0; t.parent_bytes()]).collect();
        self.plan = Some(plan.clone());
        Ok(())
    }

    fn write(&mut self, tensor: usize, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.part(tensor, offset, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, tensor: usize, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.copy_from_slice(self.part(tensor, offset, bytes.len())?);
        Ok(())
    }

    fn poison_scratch(&mut self, _: u32) -> Result<(), DeviceError> {
        Ok(())
    }

    fn run(&mut self, steps: Range<usize>) -> Result<(), DeviceError> {
        let Some(plan) = self.plan.clone() else { return Err(DeviceError("no plan is loaded".into())) };
        for step in &plan.steps[steps] {
            if let Step::Argsort { x, out, order } = *step {
                self.argsort(&plan, x, out, order)?;
            }
        }
        Ok(())
    }

    fn free(&mut self) {
        self.plan = None;
        self.tensors.clear();
    }
}

impl Memory {
    fn argsort(&mut self, plan: &Plan, x: usize, out: usize, order: Order) -> Result<(), DeviceError> {
        let [_, n1, n2, n3] = plan.tensors[x].shape;
        for row in 0..n1 * n2 * n3 {
            let at = [row % n1, row / n1 % n2, row / n1 / n2];
            let from = plan.tensors[x].row_range(at);
            let keys: Vec<f32> = read_f32(self.part(x, from.start, from.len())?).collect();
            let mut sorted: Vec<i32> = (0..).take(keys.len()).collect();
            sorted.sort_by(|a, b| keys[*a as usize].total_cmp(&keys[*b as usize]));
            if order == Order::Desc {
                sorted.reverse();
            }
            let bytes: Vec<u8> = sorted.iter().flat_map(|i| i.to_le_bytes()).collect();
            let to = plan.tensors[out].row_range(at);
            self.write(out, to.start, &bytes)?;
        }
        Ok(())
    }
}
