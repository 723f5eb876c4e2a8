//! Bytes on their way, as an engine moves them: queued on the backend, which keeps its queue in order, and waited for
//! once. A backend without a queue of its own has done the work when a call returns.
//!
//! ggml copies whole tensors of one layout: what is copied are views of runs of elements.

// Hands addresses of host memory to ggml.
#![allow(unsafe_code)]

use conform_cases::formats::ElemType;
use conform_cases::plan::Part;

use super::api::Tensor;
use super::library::Ggml;
use super::memory::{Backend, Context};
use crate::backend::DeviceError;

/// How copies inside the device are made, for whoever reads a device's properties.
pub(super) const COPIES: &str =
    "ggml_backend_tensor_copy_async of views; through the host where types differ or blocks are cut";

/// Copies whose views are described in one context.
const AT_ONCE: usize = 256;

/// Views that are kept at most: copies beyond that wait for those before.
const MOST: usize = 1 << 14;

/// The elements in so many bytes, if they are whole blocks.
pub(super) fn blocks(ty: ElemType, bytes: usize) -> Option<usize> {
    bytes.is_multiple_of(ty.block_bytes()).then(|| bytes / ty.block_bytes() * ty.block_len())
}

/// What was queued on a backend since it was last waited for.
pub(super) struct Queue {
    ggml: &'static Ggml,
    /// The ends of copies, kept as long as a backend may look at them.
    views: Vec<Context>,
    /// Copies for which the last of them has room.
    room: usize,
    is_empty: bool,
}

impl Queue {
    pub(super) fn new(ggml: &'static Ggml) -> Self {
        Queue { ggml, views: Vec::new(), room: 0, is_empty: true }
    }

    /// Waits for all that is queued.
    pub(super) fn finish(&mut self, backend: &Backend) {
        if !std::mem::replace(&mut self.is_empty, true) {
            // SAFETY: the backend is open.
            unsafe { (self.ggml.base.ggml_backend_synchronize)(backend.raw) };
        }
        self.views.clear();
        self.room = 0;
    }

    /// Queues writing the pieces of a transfer.
    ///
    /// # Safety
    /// The pieces must lie inside of the tensor, which has memory, and of the memory at `from`, which must stay as it is
    /// until [`finish`](Self::finish).
    pub(super) unsafe fn write(&mut self, backend: &Backend, to: *mut Tensor, from: *const u8, t: &Part) {
        self.is_empty = false;
        let base = &self.ggml.base;
        // SAFETY: the caller's promise.
        unsafe {
            if let (2.., Some(set)) = (t.count, base.ggml_backend_tensor_set_2d_async) {
                let from = from.add(t.there.at).cast();
                return set(backend.raw, to, from, t.here.at, t.size, t.count, t.here.stride, t.there.stride);
            }
            for (here, there) in t.pieces() {
                (base.ggml_backend_tensor_set_async)(backend.raw, to, from.add(there).cast(), here, t.size);
            }
        }
    }

    /// Queues reading the pieces of a transfer.
    ///
    /// # Safety
    /// As for [`write`](Self::write), and nobody else may look at the memory at `to`.
    pub(super) unsafe fn read(&mut self, backend: &Backend, from: *mut Tensor, to: *mut u8, t: &Part) {
        self.is_empty = false;
        let base = &self.ggml.base;
        // SAFETY: the caller's promise.
        unsafe {
            if let (2.., Some(get)) = (t.count, base.ggml_backend_tensor_get_2d_async) {
                let to = to.add(t.there.at).cast();
                return get(backend.raw, from, to, t.here.at, t.size, t.count, t.here.stride, t.there.stride);
            }
            for (here, there) in t.pieces() {
                (base.ggml_backend_tensor_get_async)(backend.raw, from, to.add(there).cast(), here, t.size);
            }
        }
    }

    /// Queues copying the pieces of a transfer, of so many elements each, from the first tensor to the second, which have
    /// one type.
    pub(super) fn copy(
        &mut self,
        backend: &Backend,
        (from, to): (*mut Tensor, *mut Tensor),
        t: &Part,
        elements: usize,
    ) -> Result<(), DeviceError> {
        for (here, there) in t.pieces() {
            if self.room == 0 {
                if self.views.len() >= MOST / AT_ONCE {
                    self.finish(backend);
                }
                self.views.push(Context::of_tensors(self.ggml, 2 * AT_ONCE)?);
                self.room = AT_ONCE;
            }
            let Some(views) = self.views.last() else { continue };
            let (source, target) = (views.run(from, elements, there), views.run(to, elements, here));
            self.is_empty = false;
            // SAFETY: both views have memory of this backend and one layout, and are kept until the queue is empty.
            unsafe {
                (self.ggml.base.ggml_backend_tensor_copy_async)(backend.raw, backend.raw, source, target);
            }
            self.room -= 1;
        }
        Ok(())
    }
}
