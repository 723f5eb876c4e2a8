//! A device whose outputs are zero.

use std::ops::Range;

use conform_cases::formats::ElemType;
use conform_cases::plan::Plan;

use crate::backend::{Complaints, Device, DeviceError, DeviceInfo, DeviceMemory, Guards, LoadError};

/// A device of any backend; what it computes is not what a reader gets.
pub(super) struct Zeros {
    inner: Box<dyn Device>,
    /// Which tensors of the loaded plan are outputs.
    outputs: Vec<bool>,
}

impl Zeros {
    pub(super) fn new(inner: Box<dyn Device>) -> Self {
        Zeros { inner, outputs: Vec::new() }
    }
}

impl Device for Zeros {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn decode(&self, ty: ElemType, blocks: &[u8], out: &mut [f32]) -> Result<(), LoadError> {
        self.inner.decode(ty, blocks, out)
    }

    fn load(&mut self, plan: &Plan) -> Result<(), LoadError> {
        self.outputs = plan.tensors.iter().map(conform_cases::plan::Tensor::is_output).collect();
        self.inner.load(plan)
    }

    fn write(&mut self, tensor: usize, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(tensor, offset, bytes)
    }

    fn read(&mut self, tensor: usize, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(tensor, offset, bytes)?;
        if self.outputs.get(tensor) == Some(&true) {
            bytes.fill(0);
        }
        Ok(())
    }

    fn poison_scratch(&mut self, pattern: u32) -> Result<(), DeviceError> {
        self.inner.poison_scratch(pattern)
    }

    fn run(&mut self, steps: Range<usize>) -> Result<(), DeviceError> {
        self.inner.run(steps)
    }

    fn free(&mut self) {
        self.inner.free();
    }

    fn guards(&mut self) -> Result<Option<Guards>, DeviceError> {
        self.inner.guards()
    }

    fn complaints(&mut self) -> Option<Complaints> {
        self.inner.complaints()
    }

    fn sorts(&self) -> Option<u64> {
        self.inner.sorts()
    }

    fn memory(&self) -> Option<DeviceMemory> {
        self.inner.memory()
    }
}
