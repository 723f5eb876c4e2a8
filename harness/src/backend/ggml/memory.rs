//! What ggml allocates, freed when dropped: an open device, tensors' descriptions, buffers.

// Owns and hands out foreign pointers.
#![allow(unsafe_code)]

use std::ffi::{CString, c_int};

use conform_cases::formats::ElemType;
use conform_cases::plan::{Role, Tensor as PlanTensor};

use super::api::{BufferType, Dev, RawBackend, RawBuffer, RawContext, RawGraph, Tensor, USAGE_WEIGHTS};
use super::library::{Ggml, text};
use super::{log, types};
use crate::backend::{DeviceError, LoadError};

/// A device with its queue or threads.
pub(super) struct Backend {
    ggml: &'static Ggml,
    pub(super) raw: *mut RawBackend,
}

impl Backend {
    pub(super) fn open(ggml: &'static Ggml, dev: *mut Dev) -> Result<Self, DeviceError> {
        log::forget();
        // SAFETY: the device is of this build's registry; a null pointer stands for no parameters.
        let raw = unsafe { (ggml.base.ggml_backend_dev_init)(dev, std::ptr::null()) };
        if raw.is_null() {
            return Err(DeviceError(format!("ggml_backend_dev_init gives no backend{}", log::complaint())));
        }
        Ok(Backend { ggml, raw })
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // SAFETY: it came from `ggml_backend_dev_init`, is freed once, and what was allocated for it is gone before:
        // a device drops its plan first.
        unsafe { (self.ggml.base.ggml_backend_free)(self.raw) };
    }
}

/// Descriptions of tensors and graphs. What lies in it is valid as long as it lives.
pub(super) struct Context {
    ggml: &'static Ggml,
    raw: *mut RawContext,
}

impl Context {
    /// Room for so many tensors, views included.
    pub(super) fn of_tensors(ggml: &'static Ggml, count: usize) -> Result<Self, DeviceError> {
        // SAFETY: the function takes nothing.
        Self::of_size(ggml, count * unsafe { (ggml.base.ggml_tensor_overhead)() })
    }

    fn of_size(ggml: &'static Ggml, mem_size: usize) -> Result<Self, DeviceError> {
        let params = super::api::InitParams { mem_size, mem_buffer: std::ptr::null_mut(), no_alloc: true };
        // SAFETY: the struct has the layout that ggml declares, and without a buffer ggml allocates one.
        let raw = unsafe { (ggml.base.ggml_init)(params) };
        if raw.is_null() {
            return Err(DeviceError(format!("ggml_init gives no context of {mem_size} bytes")));
        }
        Ok(Context { ggml, raw })
    }

    /// A tensor of the shape of an allocation.
    pub(super) fn tensor(&self, t: &PlanTensor, ty: c_int) -> *mut Tensor {
        let [a, b, c, d] = signed(t.parent);
        // SAFETY: the context has room, as its maker counted, and the type's number is this build's own.
        let raw = unsafe { (self.ggml.base.ggml_new_tensor_4d)(self.raw, ty, a, b, c, d) };
        self.name(raw, &t.name);
        raw
    }

    /// The part of an allocation that a plan's tensor is: the allocation itself where that is all of it.
    pub(super) fn view(&self, t: &PlanTensor, parent: *mut Tensor) -> *mut Tensor {
        if t.is_contiguous() {
            return parent;
        }
        let ([a, b, c, d], [_, s1, s2, s3]) = (signed(t.shape), t.strides());
        // SAFETY: the parent lives in this context or one that outlives it, and the view lies inside of it.
        let raw = unsafe { (self.ggml.base.ggml_view_4d)(self.raw, parent, a, b, c, d, s1, s2, s3, t.offset()) };
        self.name(raw, &format!("{} (view)", t.name));
        raw
    }

    /// A run of elements from a byte offset on, with the memory that its parent has.
    pub(super) fn run(&self, parent: *mut Tensor, elements: usize, offset: usize) -> *mut Tensor {
        let elements = i64::try_from(elements).unwrap_or(i64::MAX);
        // SAFETY: the context has room, as its maker counted; the parent lives in a context that outlives this one and
        // has memory, and the run lies inside of it.
        unsafe {
            let raw = (self.ggml.base.ggml_view_1d)(self.raw, parent, elements, offset);
            (self.ggml.base.ggml_backend_view_init)(raw);
            raw
        }
    }

    /// `ggml_mul_mat_id`. ggml asserts what the caller must have checked: shapes that fit, ids of type i32.
    pub(super) fn mul_mat_id(&self, weights: *mut Tensor, x: *mut Tensor, ids: *mut Tensor) -> *mut Tensor {
        // SAFETY: the tensors live in this context or one that outlives it.
        unsafe { (self.ggml.base.ggml_mul_mat_id)(self.raw, weights, x, ids) }
    }

    /// `ggml_top_k` into a tensor of the plan. Until late 2025 that was a view of an argsort, which is made here step by
    /// step and copied into a tensor of its own. The operations in their order; the last has the result.
    pub(super) fn top_k(&self, x: *mut Tensor, t: &PlanTensor) -> Result<Vec<*mut Tensor>, DeviceError> {
        const DESCENDING: c_int = 1;
        if Self::has_top_k(self.ggml)? {
            let k = c_int::try_from(t.shape[0]).unwrap_or(c_int::MAX);
            // SAFETY: as for `argsort`; k is at most the columns of x, as the plan's check has seen.
            return Ok(vec![unsafe { (self.ggml.base.ggml_top_k)(self.raw, x, k) }]);
        }
        let order = self.argsort(x, DESCENDING);
        let ([a, b, c, d], row) = (signed(t.shape), self.bytes(order) / t.parent_rows());
        let planes = [row * t.shape[1], row * t.shape[1] * t.shape[2]];
        // SAFETY: both live in this context, and the first columns of each row lie inside of it.
        let best = unsafe {
            let best = (self.ggml.base.ggml_view_4d)(self.raw, order, a, b, c, d, row, planes[0], planes[1], 0);
            (self.ggml.base.ggml_cont)(self.raw, best)
        };
        Ok(vec![order, best])
    }

    /// Whether a build has an operation of its own for it: a view of two rows reaches over more bytes than the result has.
    fn has_top_k(ggml: &'static Ggml) -> Result<bool, DeviceError> {
        let f32 = types::number(ggml, ElemType::F32).map_err(DeviceError)?;
        let trial = Self::of_tensors(ggml, 4)?;
        let x = trial.tensor(&PlanTensor::whole("x", ElemType::F32, [2, 2, 1, 1], Role::Input), f32);
        // SAFETY: the context has room, and what is made in it is only looked at.
        let best = unsafe { (ggml.base.ggml_top_k)(trial.raw, x, 1) };
        Ok(trial.bytes(best) == 2 * size_of::<i32>())
    }

    /// `ggml_argsort`.
    pub(super) fn argsort(&self, x: *mut Tensor, order: c_int) -> *mut Tensor {
        // SAFETY: as above.
        unsafe { (self.ggml.base.ggml_argsort)(self.raw, x, order) }
    }

    /// Bytes of a tensor.
    pub(super) fn bytes(&self, tensor: *mut Tensor) -> usize {
        // SAFETY: the tensor lives in this context.
        unsafe { (self.ggml.base.ggml_nbytes)(tensor) }
    }

    /// Names a tensor in ggml's messages. It cuts what is too long.
    pub(super) fn name(&self, tensor: *mut Tensor, name: &str) {
        if let Ok(name) = CString::new(name) {
            // SAFETY: the tensor is alive, and ggml copies the string.
            unsafe { (self.ggml.base.ggml_set_name)(tensor, name.as_ptr()) };
        }
    }

    /// Gives memory of a type of buffer to all tensors of the context that have none. `bytes` is what they need.
    pub(super) fn allocate(&self, dev: *mut Dev, ty: *mut BufferType, bytes: usize) -> Result<Buffer, LoadError> {
        let base = &self.ggml.base;
        log::forget();
        // SAFETY: context and type of buffer are alive, and the context was made without memory of its own.
        let raw = unsafe { (base.ggml_backend_alloc_ctx_tensors_from_buft)(self.raw, ty) };
        if !raw.is_null() {
            return Ok(Buffer { ggml: self.ggml, raw });
        }
        let (mut free, mut total) = (0, 0);
        // SAFETY: the device and the type of buffer are of this build, and the numbers are written to.
        let (name, largest) = unsafe {
            (base.ggml_backend_dev_memory)(dev, &raw mut free, &raw mut total);
            (text((base.ggml_backend_buft_name)(ty)).unwrap_or_default(), (base.ggml_backend_buft_get_max_size)(ty))
        };
        let why = format!("no {bytes} bytes of {name} to be had{}", log::complaint());
        if bytes > largest || (total > 0 && bytes > total) {
            let limits = format!("a buffer has at most {largest} bytes, the device {total}");
            return Err(LoadError::Unsupported(format!("{why}; {limits}")));
        }
        Err(DeviceError(why).into())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it came from `ggml_init` and is freed once; whoever holds tensors of it drops it last.
        unsafe { (self.ggml.base.ggml_free)(self.raw) };
    }
}

/// Memory of a device.
pub(super) struct Buffer {
    ggml: &'static Ggml,
    raw: *mut RawBuffer,
}

impl Buffer {
    /// Says that it holds weights, which some backends treat differently.
    pub(super) fn holds_weights(&self) {
        // SAFETY: the buffer is alive, and the number is that of the usage.
        unsafe { (self.ggml.base.ggml_backend_buffer_set_usage)(self.raw, USAGE_WEIGHTS) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it came from an allocation and is freed once; its tensors are not used after their plan.
        unsafe { (self.ggml.base.ggml_backend_buffer_free)(self.raw) };
    }
}

/// Operations in the order in which they run.
pub(super) struct Graph {
    /// Owns the memory behind `raw`.
    _context: Context,
    pub(super) raw: *mut RawGraph,
}

impl Graph {
    /// Operations with all that they need, as a model's graph is built, so that a backend can see the whole.
    pub(super) fn whole(ggml: &'static Ggml, ops: &[*mut Tensor]) -> Result<Self, DeviceError> {
        let graph = Self::empty(ggml)?;
        for op in ops {
            // SAFETY: graph and tensor are alive, and the graph has room for far more than a plan's steps.
            unsafe { (ggml.base.ggml_build_forward_expand)(graph.raw, *op) };
        }
        Ok(graph)
    }

    /// These operations and nothing that they need: it is there already.
    pub(super) fn part(ggml: &'static Ggml, ops: &[*mut Tensor]) -> Result<Self, DeviceError> {
        // Newer builds compute only what was in such a graph once.
        Self::whole(ggml, ops)?;
        let graph = Self::empty(ggml)?;
        for op in ops {
            // SAFETY: as above.
            unsafe { (ggml.base.ggml_graph_add_node)(graph.raw, *op) };
        }
        Ok(graph)
    }

    fn empty(ggml: &'static Ggml) -> Result<Self, DeviceError> {
        // SAFETY: the functions take nothing.
        let size = unsafe { (ggml.base.ggml_graph_overhead)() };
        let context = Context::of_size(ggml, size)?;
        // SAFETY: the context has room for one graph of the default size.
        let raw = unsafe { (ggml.base.ggml_new_graph)(context.raw) };
        Ok(Graph { _context: context, raw })
    }
}

fn signed(shape: [usize; 4]) -> [i64; 4] {
    // The worker has checked that all products of a plan fit into a usize; more than i64 has no machine.
    shape.map(|n| i64::try_from(n).unwrap_or(i64::MAX))
}
