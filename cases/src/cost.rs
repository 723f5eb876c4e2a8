//! What a case costs: it bounds what is drawn, and sets time-outs and memory.

/// Work and memory of one execution of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Multiply-adds, or compare-exchanges of a sort.
    pub operations: u64,
    /// Elements of all inputs: generated, uploaded, decoded.
    pub input_elements: u64,
    /// Memory for the right values and what bounds need, about.
    pub oracle_bytes: u64,
}

impl Cost {
    /// No drawn case costs more operations than this; ids written by hand may. A sort of 2^20 columns takes 110 million.
    pub const MAX_OPERATIONS: u64 = 64_000_000;
    /// No drawn case has more input elements than this.
    pub const MAX_INPUT_ELEMENTS: u64 = 16_000_000;

    /// Seconds beyond which a device that still works is called hung, on top of a fixed allowance for compiling.
    ///
    /// 20 million operations and 20 million elements a second are slower than any healthy device seen by
    /// a factor of ten, software simulators apart.
    pub fn allowance_seconds(self) -> f64 {
        (self.operations + self.input_elements) as f64 / 20e6
    }
}
