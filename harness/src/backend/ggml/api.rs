//! ggml's functions as this driver calls them: opaque pointers, and few structs of ggml's.
//!
//! The signatures have not changed from early 2025 (b4753) to ggml 0.26. What
//! came or went in that time is optional here and looked for by name.

// Function pointers are taken from a library by name, and their types are promises of this file.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::Library;

use super::log;

/// An opaque type of ggml's.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(super) struct $name {
            _opaque: [u8; 0],
        }
    )*};
}

opaque! {
    /// Memory for the descriptions of tensors: `ggml_context`.
    RawContext;
    /// `ggml_tensor`.
    Tensor;
    /// `ggml_cgraph`.
    RawGraph;
    /// A backend in the registry: `ggml_backend_reg`.
    Reg;
    /// `ggml_backend_device`.
    Dev;
    /// An open device: `ggml_backend`.
    RawBackend;
    /// `ggml_backend_buffer_type`.
    BufferType;
    /// `ggml_backend_buffer`.
    RawBuffer;
    /// `llama_model`.
    LlamaModel;
    /// `llama_context`.
    LlamaContext;
    /// `llama_memory_i`.
    LlamaMemory;
}

/// `ggml_init_params`, passed by value.
#[repr(C)]
pub(super) struct InitParams {
    pub(super) mem_size: usize,
    pub(super) mem_buffer: *mut c_void,
    pub(super) no_alloc: bool,
}

/// `ggml_type_traits`: what follows is not looked at. The same from b4753 to v0.5.0.
#[repr(C)]
pub(super) struct TypeTraits {
    pub(super) type_name: *const c_char,
    pub(super) blck_size: i64,
    pub(super) blck_size_interleave: i64,
    pub(super) type_size: usize,
    pub(super) is_quantized: bool,
    /// From blocks to so many numbers.
    pub(super) to_float: Option<unsafe extern "C" fn(*const c_void, *mut f32, i64)>,
}

/// `ggml_backend_feature`: a name and a value, both strings.
#[repr(C)]
pub(super) struct Feature {
    pub(super) name: *const c_char,
    pub(super) value: *const c_char,
}

/// `llama_model_params` or `llama_context_params` of any version: more bytes than any of them has.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Params(pub(super) [u64; 128]);

/// `llama_batch`, passed by value.
#[repr(C)]
pub(super) struct LlamaBatch {
    pub(super) n_tokens: i32,
    pub(super) token: *mut i32,
    pub(super) embd: *mut f32,
    pub(super) pos: *mut i32,
    pub(super) n_seq_id: *mut i32,
    pub(super) seq_id: *mut *mut i32,
    pub(super) logits: *mut i8,
}

/// `GGML_BACKEND_BUFFER_USAGE_WEIGHTS`.
pub(super) const USAGE_WEIGHTS: c_int = 1;

/// `GGML_BACKEND_DEVICE_TYPE_CPU`; the numbers above it have moved.
pub(super) const DEVICE_TYPE_CPU: c_int = 0;

/// Declares a table of functions, each under its own name, and how to fill it from a library.
macro_rules! functions {
    (
        $(#[$doc:meta])*
        $table:ident;
        required { $($must:ident($($arg:ty),*) $(-> $ret:ty)?;)* }
        optional { $($may:ident($($oarg:ty),*) $(-> $oret:ty)?;)* }
    ) => {
        $(#[$doc])*
        pub(super) struct $table {
            $(pub(super) $must: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub(super) $may: Option<unsafe extern "C" fn($($oarg),*) $(-> $oret)?>,)*
        }

        impl $table {
            /// Looks every function up; the error names the first one that is missing.
            ///
            /// # Safety
            /// The library must be ggml's, so that the names mean these types, and must never be unloaded.
            pub(super) unsafe fn resolve(library: &Library) -> Result<Self, String> {
                $(
                    // SAFETY: by the caller's promise the symbol is the function of that name in ggml, whose type
                    // is the one written in this file.
                    let $must = unsafe { library.get(stringify!($must)) };
                    let $must = *$must.map_err(|_| concat!("has no function ", stringify!($must)).to_owned())?;
                )*
                $(
                    // SAFETY: as above.
                    let $may = unsafe { library.get(stringify!($may)) }.ok().map(|f| *f);
                )*
                Ok($table { $($must,)* $($may,)* })
            }
        }
    };
}

functions! {
    /// Functions of libggml-base.
    Base;
    required {
        ggml_log_set(unsafe extern "C" fn(c_int, *const c_char, *mut c_void), *mut c_void);
        ggml_type_name(c_int) -> *const c_char;
        ggml_blck_size(c_int) -> i64;
        ggml_row_size(c_int, i64) -> usize;
        ggml_get_type_traits(c_int) -> *const TypeTraits;
        ggml_tensor_overhead() -> usize;
        ggml_graph_overhead() -> usize;
        ggml_init(InitParams) -> *mut RawContext;
        ggml_free(*mut RawContext);
        ggml_new_tensor_4d(*mut RawContext, c_int, i64, i64, i64, i64) -> *mut Tensor;
        ggml_view_4d(*mut RawContext, *mut Tensor, i64, i64, i64, i64, usize, usize, usize, usize) -> *mut Tensor;
        ggml_set_name(*mut Tensor, *const c_char) -> *mut Tensor;
        ggml_mul_mat_id(*mut RawContext, *mut Tensor, *mut Tensor, *mut Tensor) -> *mut Tensor;
        ggml_argsort(*mut RawContext, *mut Tensor, c_int) -> *mut Tensor;
        ggml_top_k(*mut RawContext, *mut Tensor, c_int) -> *mut Tensor;
        ggml_cont(*mut RawContext, *mut Tensor) -> *mut Tensor;
        ggml_nbytes(*const Tensor) -> usize;
        ggml_new_graph(*mut RawContext) -> *mut RawGraph;
        ggml_build_forward_expand(*mut RawGraph, *mut Tensor);
        ggml_graph_add_node(*mut RawGraph, *mut Tensor);
        ggml_backend_reg_name(*mut Reg) -> *const c_char;
        ggml_backend_reg_dev_count(*mut Reg) -> usize;
        ggml_backend_reg_dev_get(*mut Reg, usize) -> *mut Dev;
        ggml_backend_reg_get_proc_address(*mut Reg, *const c_char) -> *mut c_void;
        ggml_backend_dev_name(*mut Dev) -> *const c_char;
        ggml_backend_dev_description(*mut Dev) -> *const c_char;
        ggml_backend_dev_memory(*mut Dev, *mut usize, *mut usize);
        ggml_backend_dev_type(*mut Dev) -> c_int;
        ggml_backend_dev_get_props(*mut Dev, *mut c_void);
        ggml_backend_dev_init(*mut Dev, *const c_char) -> *mut RawBackend;
        ggml_backend_dev_buffer_type(*mut Dev) -> *mut BufferType;
        ggml_backend_dev_supports_op(*mut Dev, *const Tensor) -> bool;
        ggml_backend_free(*mut RawBackend);
        ggml_backend_graph_compute(*mut RawBackend, *mut RawGraph) -> c_int;
        ggml_backend_buft_name(*mut BufferType) -> *const c_char;
        ggml_backend_buft_get_max_size(*mut BufferType) -> usize;
        ggml_backend_alloc_ctx_tensors_from_buft(*mut RawContext, *mut BufferType) -> *mut RawBuffer;
        ggml_backend_buffer_free(*mut RawBuffer);
        ggml_backend_buffer_set_usage(*mut RawBuffer, c_int);
        ggml_backend_tensor_set(*mut Tensor, *const c_void, usize, usize);
        ggml_backend_tensor_get(*const Tensor, *mut c_void, usize, usize);
        ggml_backend_tensor_set_async(*mut RawBackend, *mut Tensor, *const c_void, usize, usize);
        ggml_backend_tensor_get_async(*mut RawBackend, *const Tensor, *mut c_void, usize, usize);
        ggml_backend_tensor_copy_async(*mut RawBackend, *mut RawBackend, *mut Tensor, *mut Tensor);
        ggml_backend_synchronize(*mut RawBackend);
        // It returned nothing in early 2025 and a status since: not to be looked at.
        ggml_backend_view_init(*mut Tensor);
        ggml_view_1d(*mut RawContext, *mut Tensor, i64, usize) -> *mut Tensor;
    }
    optional {
        // Pieces, then the distances between them: in the tensor and in memory.
        ggml_backend_tensor_set_2d_async(*mut RawBackend, *mut Tensor, *const c_void, usize, usize, usize, usize, usize);
        ggml_backend_tensor_get_2d_async(*mut RawBackend, *const Tensor, *mut c_void, usize, usize, usize, usize, usize);
        ggml_version() -> *const c_char;
        ggml_commit() -> *const c_char;
        // Only its presence is looked at.
        ggml_build_forward_select(*mut RawGraph, *mut *mut Tensor, c_int, c_int) -> *mut Tensor;
    }
}

functions! {
    /// Functions of libggml.
    Core;
    required {
        ggml_backend_reg_count() -> usize;
        ggml_backend_reg_get(usize) -> *mut Reg;
        ggml_backend_load(*const c_char) -> *mut Reg;
    }
    optional {
    }
}

functions! {
    /// Functions of a library that holds one backend; the first makes it one that can be loaded by itself.
    ModuleApi;
    required {}
    optional {
        ggml_backend_init() -> *mut Reg;
        ggml_backend_score() -> c_int;
    }
}

functions! {
    /// Functions of libllama.
    Llama;
    required {
        llama_log_set(unsafe extern "C" fn(c_int, *const c_char, *mut c_void), *mut c_void);
        llama_backend_init();
        llama_model_default_params() -> Params;
        llama_context_default_params() -> Params;
        llama_model_load_from_file(*const c_char, Params) -> *mut LlamaModel;
        llama_model_free(*mut LlamaModel);
        llama_init_from_model(*mut LlamaModel, Params) -> *mut LlamaContext;
        llama_free(*mut LlamaContext);
        llama_set_n_threads(*mut LlamaContext, i32, i32);
        llama_decode(*mut LlamaContext, LlamaBatch) -> i32;
        llama_get_logits_ith(*mut LlamaContext, i32) -> *mut f32;
        llama_state_get_size(*mut LlamaContext) -> usize;
        llama_state_get_data(*mut LlamaContext, *mut u8, usize) -> usize;
        llama_state_set_data(*mut LlamaContext, *const u8, usize) -> usize;
        llama_state_seq_get_size(*mut LlamaContext, i32) -> usize;
        llama_state_seq_get_data(*mut LlamaContext, *mut u8, usize, i32) -> usize;
        llama_state_seq_set_data(*mut LlamaContext, *const u8, usize, i32) -> usize;
    }
    optional {
        llama_state_seq_get_size_ext(*mut LlamaContext, i32, u32) -> usize;
        llama_state_seq_get_data_ext(*mut LlamaContext, *mut u8, usize, i32, u32) -> usize;
        llama_state_seq_set_data_ext(*mut LlamaContext, *const u8, usize, i32, u32) -> usize;
        llama_get_memory(*const LlamaContext) -> *mut LlamaMemory;
        llama_memory_seq_rm(*mut LlamaMemory, i32, i32, i32) -> bool;
        llama_memory_seq_cp(*mut LlamaMemory, i32, i32, i32, i32);
        llama_kv_self_seq_cp(*mut LlamaContext, i32, i32, i32, i32);
        llama_kv_cache_seq_cp(*mut LlamaContext, i32, i32, i32, i32);
        llama_kv_self_seq_rm(*mut LlamaContext, i32, i32, i32) -> bool;
        llama_kv_cache_seq_rm(*mut LlamaContext, i32, i32, i32) -> bool;
    }
}

/// By `ggml_backend_reg_get_proc_address`, `ggml_backend_set_n_threads`.
pub(super) type SetThreads = unsafe extern "C" fn(*mut RawBackend, c_int);

/// By the same, `ggml_backend_dev_get_extra_bufts`: a list that ends with a null pointer.
pub(super) type ExtraBufferTypes = unsafe extern "C" fn(*mut Dev) -> *mut *mut BufferType;

/// By the same, `ggml_backend_get_features`: a list that ends with a null name.
pub(super) type GetFeatures = unsafe extern "C" fn(*mut Reg) -> *const Feature;

impl Base {
    /// Sends ggml's log to ours.
    pub(super) fn take_log(&self) {
        // SAFETY: the callback keeps to ggml's contract and lives as long as the program.
        unsafe { (self.ggml_log_set)(log::on_message, std::ptr::null_mut()) };
    }
}
