//! Mutants of which no result tells: what they compute is right, on most devices and for now. They are there for a
//! device that watches each access of its kernels, one for each thing that it looks for.
//!
//! Each is made so that other OpenCL devices come to no harm: what is read too far lies in a guard.

use crate::mutants::{Fault, Mutant};

use super::edit;

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        id: "u1-reads-behind",
        bug: "B27 ggml 4a25293e",
        what: "gemm reads weights of the rows behind the last, and forgets what comes of them",
        op: "mul_mat_id",
        fault: Fault::Unseen(&[edit(
            "gemm.cl",
            "        if (row < rows) {\n            const ulong block",
            "        {\n            const ulong block",
        )]),
    },
    Mutant {
        id: "u2-unwritten-keys",
        bug: "B4 llama.cpp PR #27538",
        what: "the keys of padding are compared without having been written, though padding is told by its index",
        op: "argsort",
        fault: Fault::Unseen(&[edit(
            "argsort.cl",
            "        key[i] = sort_key(bits, descending);\n",
            "        if (real)\n            key[i] = sort_key(bits, descending);\n",
        )]),
    },
    // Work-items that run one after the other, or in one vector, come to it in order.
    Mutant {
        id: "u3-race-in-order",
        bug: "B25 ik_llama fbcc743c7",
        what: "counts of the work-items before are added up while these may still write them",
        op: "top_k",
        fault: Fault::Unseen(&[edit(
            "top_k.cl",
            "equal[lane] = equal_here;\n    barrier(CLK_LOCAL_MEM_FENCE);\n",
            "equal[lane] = equal_here;\n",
        )]),
    },
    Mutant {
        id: "u4-barrier-for-some",
        bug: "A6 ggml 6e2c0557",
        what: "work-items without a row leave out the barrier at the end of a step of gemm",
        op: "mul_mat_id",
        fault: Fault::Unseen(&[edit(
            "gemm.cl",
            "        }\n        // Nobody loads the next step while another still reads this one.\n        barrier(CLK_LOCAL_MEM_FENCE);\n",
            "            barrier(CLK_LOCAL_MEM_FENCE);\n        }\n",
        )]),
    },
];
