//! A build's libllama: models of its own kind, contexts, and their state.
//!
//! Parameter structs are returned and passed by value, and have grown from version to version. They are larger than 16
//! bytes, so on x86-64 they travel in memory, where a block that is larger than any of them does as well: fields before
//! the first that moved are where they were, and the default values in them tell that they are.

// Runs foreign code through its C interface.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::OnceLock;

use conform_cases::llama::calls::{ABSENT, Call, GUARD, Piece, write_record};
use conform_cases::llama::script::{CELLS, SEQUENCES};
use conform_cases::llama::weights::VOCABULARY;
use tempfile::NamedTempFile;

use super::api::{Dev, Llama as Api, LlamaBatch, LlamaContext, LlamaModel, Params};
use super::library::Ggml;
use super::log;
use crate::backend::{DeviceError, LoadError};

/// `LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`, called `SWA_ONLY` in 2025.
const PARTIAL: u32 = 1;

/// Loads a model into the build's libllama, calls it, and leaves a record of each call in the log. `dev` is the device
/// that layers are put on; null for the processor.
pub(super) fn run(ggml: &Ggml, dev: *mut Dev, model: &[u8], calls: &[Call], log: &mut [u8]) -> Result<(), LoadError> {
    let api = api(ggml)?;
    let mut session = Session { api, model: load(api, dev, model)?, contexts: BTreeMap::new(), blobs: BTreeMap::new() };
    let mut end = 0;
    for call in calls {
        let (value, bytes) = session.call(call)?;
        write_record(log, &mut end, value, &bytes).map_err(DeviceError)?;
    }
    Ok(())
}

/// The functions of libllama, loaded when they are first asked for.
fn api(ggml: &Ggml) -> Result<&'static Api, LoadError> {
    static LOADED: OnceLock<Result<Api, String>> = OnceLock::new();
    let Some(path) = &ggml.files.llama else {
        return Err(LoadError::Unsupported("this build has no libllama".to_owned()));
    };
    let open = || {
        ggml.need_cpu()?;
        let library = super::library::open_whole(path)?;
        // SAFETY: the file has the name of llama.cpp's library, and is never unloaded.
        let api = unsafe { Api::resolve(&library) }?;
        // SAFETY: the callback keeps to the contract and lives as long as the program; the other takes nothing.
        unsafe {
            (api.llama_log_set)(log::on_message, ptr::null_mut());
            (api.llama_backend_init)();
        }
        Ok(api)
    };
    LOADED.get_or_init(open).as_ref().map_err(|why| LoadError::Unsupported(format!("{}: {why}", path.display())))
}

/// Loads a model from a file that is removed again.
fn load(api: &'static Api, dev: *mut Dev, model: &[u8]) -> Result<Model, LoadError> {
    let failed = |e: std::io::Error| DeviceError(format!("the model cannot be written to a temporary file: {e}"));
    let mut file = NamedTempFile::with_suffix(".gguf").map_err(failed)?;
    file.write_all(model).and_then(|()| file.flush()).map_err(failed)?;
    let path = CString::new(file.path().as_os_str().as_bytes())
        .map_err(|_| DeviceError("the temporary folder has a NUL in its name".to_owned()))?;
    // SAFETY: it takes nothing; the block has room for any version's parameters.
    let mut params = unsafe { (api.llama_model_default_params)() };
    // The list ends with a null pointer: without a device everything stays on the processor.
    let mut devices = [dev, ptr::null_mut()];
    params.set_pointer(0, devices.as_mut_ptr().cast());
    // `n_gpu_layers` stands before `split_mode`, which is 1, and was moved by a pointer in April 2025.
    let layers = [8, 16].into_iter().find(|at| params.i32(at + 4) == 1);
    let layers = layers.ok_or_else(|| unknown("llama_model_params"))?;
    params.set_i32(layers, if dev.is_null() { 0 } else { 99 });
    log::forget();
    // SAFETY: path and devices live until the call returns, and the device belongs to this build.
    let raw = unsafe { (api.llama_model_load_from_file)(path.as_ptr(), params) };
    match raw.is_null() {
        true => Err(LoadError::Unsupported(format!("this libllama does not load the model{}", log::complaint()))),
        false => Ok(Model { api, raw }),
    }
}

fn unknown(what: &str) -> LoadError {
    LoadError::Unsupported(format!("the layout of this libllama's {what} is not known"))
}

/// A loaded model.
struct Model {
    api: &'static Api,
    raw: *mut LlamaModel,
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the model is not used any more.
        unsafe { (self.api.llama_model_free)(self.raw) };
    }
}

/// A context of a model that outlives it.
struct Context {
    api: &'static Api,
    raw: *mut LlamaContext,
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is not used any more.
        unsafe { (self.api.llama_free)(self.raw) };
    }
}

/// What calls refer to by numbers. Contexts are dropped before their model.
struct Session {
    api: &'static Api,
    contexts: BTreeMap<usize, Context>,
    blobs: BTreeMap<usize, Vec<u8>>,
    model: Model,
}

impl Session {
    fn call(&mut self, call: &Call) -> Result<(i64, Vec<u8>), LoadError> {
        Ok(match call {
            Call::Open { context, types } => {
                // The old one is gone before there is a new one.
                self.contexts.remove(context);
                let opened = self.open(*types)?;
                self.contexts.insert(*context, opened);
                (1, Vec::new())
            }
            Call::Decode { context, sequence, position, tokens } => {
                self.decode(self.context(*context)?, *sequence, *position, tokens)
            }
            Call::Remove { context, sequence, from, to } => {
                (self.remove(self.context(*context)?, *sequence, *from, *to), Vec::new())
            }
            Call::Copy { context, from, to } => (self.copy(self.context(*context)?, *from, *to), Vec::new()),
            Call::Size { context, what } => (self.size(self.context(*context)?, *what), Vec::new()),
            Call::Save { context, what, blob } => {
                let (value, bytes) = self.save(self.context(*context)?, *what);
                let saved = &bytes[..bytes.len().saturating_sub(GUARD.len())];
                self.blobs.insert(*blob, saved.to_vec());
                (value, bytes)
            }
            Call::Load { context, what, blob, damage } => {
                let saved = self.blobs.get(blob).ok_or_else(|| DeviceError(format!("no blob {blob} was saved")))?;
                let bytes = damage.map_or_else(|| saved.clone(), |damage| damage.of(saved));
                (self.load(self.context(*context)?, *what, &bytes), Vec::new())
            }
        })
    }

    fn context(&self, number: usize) -> Result<*mut LlamaContext, DeviceError> {
        let context = self.contexts.get(&number).map(|context| context.raw);
        context.ok_or_else(|| DeviceError(format!("no context {number} is open")))
    }

    fn open(&self, types: Option<[i32; 2]>) -> Result<Context, LoadError> {
        // SAFETY: it takes nothing; the block has room for any version's parameters.
        let mut params = unsafe { (self.api.llama_context_default_params)() };
        // n_ctx, n_batch, n_ubatch, n_seq_max; what follows has moved.
        if [0, 4, 8, 12].map(|at| params.i32(at)) != [512, 2048, 512, 1] {
            return Err(unknown("llama_context_params"));
        }
        params.set_i32(0, CELLS as i32);
        params.set_i32(12, SEQUENCES as i32);
        if let Some([k, v]) = types {
            let at = params.cache_types().ok_or_else(|| unknown("llama_context_params"))?;
            params.set_i32(at, k);
            params.set_i32(at + 4, v);
        }
        log::forget();
        // SAFETY: the model is alive.
        let raw = unsafe { (self.api.llama_init_from_model)(self.model.raw, params) };
        if raw.is_null() {
            return Err(DeviceError(format!("llama_init_from_model gives no context{}", log::complaint())).into());
        }
        // SAFETY: the context is alive.
        unsafe { (self.api.llama_set_n_threads)(raw, 1, 1) };
        Ok(Context { api: self.api, raw })
    }

    /// The logits are those after the last token.
    fn decode(&self, context: *mut LlamaContext, sequence: i32, position: i32, tokens: &[i32]) -> (i64, Vec<u8>) {
        let count = tokens.len();
        let mut tokens = tokens.to_vec();
        let mut positions: Vec<i32> = (position..).take(count).collect();
        let mut counts = vec![1i32; count];
        let mut sequence = sequence;
        let mut sequences = vec![&raw mut sequence; count];
        let mut wanted = vec![0i8; count];
        if let Some(last) = wanted.last_mut() {
            *last = 1;
        }
        let batch = LlamaBatch {
            n_tokens: count as i32,
            token: tokens.as_mut_ptr(),
            embd: ptr::null_mut(),
            pos: positions.as_mut_ptr(),
            n_seq_id: counts.as_mut_ptr(),
            seq_id: sequences.as_mut_ptr(),
            logits: wanted.as_mut_ptr(),
        };
        // SAFETY: the context is alive, and so are all lists, each with an entry for every token.
        let status = unsafe { (self.api.llama_decode)(context, batch) };
        if status != 0 {
            return (status.into(), Vec::new());
        }
        // SAFETY: logits of the last token were asked for.
        let logits = unsafe { (self.api.llama_get_logits_ith)(context, count as i32 - 1) };
        if logits.is_null() {
            return (0, Vec::new());
        }
        // SAFETY: a row of logits has one for each token of the vocabulary, and lives until the next call.
        let logits = unsafe { std::slice::from_raw_parts(logits, VOCABULARY) };
        (0, logits.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// By the name that the function has in this version: it was renamed twice in 2025.
    fn remove(&self, context: *mut LlamaContext, sequence: i32, from: i32, to: i32) -> i64 {
        let api = self.api;
        // SAFETY: the context is alive, and its memory is its own.
        unsafe {
            if let (Some(memory), Some(remove)) = (api.llama_get_memory, api.llama_memory_seq_rm) {
                return remove(memory(context), sequence, from, to).into();
            }
            let remove = api.llama_kv_self_seq_rm.or(api.llama_kv_cache_seq_rm);
            remove.map_or(ABSENT, |remove| remove(context, sequence, from, to).into())
        }
    }

    /// By the names that the function had, as above.
    fn copy(&self, context: *mut LlamaContext, from: i32, to: i32) -> i64 {
        let api = self.api;
        // SAFETY: the context is alive, and its memory is its own. Negative ends mean all positions.
        unsafe {
            if let (Some(memory), Some(copy)) = (api.llama_get_memory, api.llama_memory_seq_cp) {
                copy(memory(context), from, to, -1, -1);
                return 1;
            }
            let Some(copy) = api.llama_kv_self_seq_cp.or(api.llama_kv_cache_seq_cp) else { return ABSENT };
            copy(context, from, to, -1, -1);
        }
        1
    }

    fn size(&self, context: *mut LlamaContext, what: Piece) -> i64 {
        let api = self.api;
        // SAFETY: the context is alive.
        let size = unsafe {
            match what {
                Piece::Whole => (api.llama_state_get_size)(context),
                Piece::Sequence(sequence) => (api.llama_state_seq_get_size)(context, sequence),
                Piece::Partial(sequence) => match api.llama_state_seq_get_size_ext {
                    Some(size) => size(context, sequence, PARTIAL),
                    None => return ABSENT,
                },
            }
        };
        i64::try_from(size).unwrap_or(i64::MAX)
    }

    /// The blob, and the guard behind it.
    fn save(&self, context: *mut LlamaContext, what: Piece) -> (i64, Vec<u8>) {
        /// More is no size of a state of such a model.
        const MOST: i64 = 1 << 28;
        let api = self.api;
        let asked = self.size(context, what);
        if !(0..=MOST).contains(&asked) {
            return (asked, Vec::new());
        }
        let asked = asked as usize;
        let mut bytes = vec![0; asked];
        bytes.extend(GUARD);
        let to = bytes.as_mut_ptr();
        // SAFETY: the context is alive, and there are so many bytes.
        let written = unsafe {
            match what {
                Piece::Whole => (api.llama_state_get_data)(context, to, asked),
                Piece::Sequence(sequence) => (api.llama_state_seq_get_data)(context, to, asked, sequence),
                Piece::Partial(sequence) => match api.llama_state_seq_get_data_ext {
                    Some(save) => save(context, to, asked, sequence, PARTIAL),
                    None => return (ABSENT, Vec::new()),
                },
            }
        };
        (i64::try_from(written).unwrap_or(i64::MAX), bytes)
    }

    fn load(&self, context: *mut LlamaContext, what: Piece, bytes: &[u8]) -> i64 {
        let (api, from, len) = (self.api, bytes.as_ptr(), bytes.len());
        // SAFETY: the context is alive, and there are so many bytes.
        let read = unsafe {
            match what {
                Piece::Whole => (api.llama_state_set_data)(context, from, len),
                Piece::Sequence(sequence) => (api.llama_state_seq_set_data)(context, from, len, sequence),
                Piece::Partial(sequence) => match api.llama_state_seq_set_data_ext {
                    Some(load) => load(context, from, len, sequence, PARTIAL),
                    None => return ABSENT,
                },
            }
        };
        i64::try_from(read).unwrap_or(i64::MAX)
    }
}

impl Params {
    fn i32(&self, at: usize) -> i32 {
        let word = self.0[at / 8];
        (if at.is_multiple_of(8) { word } else { word >> 32 }) as u32 as i32
    }

    fn set_i32(&mut self, at: usize, value: i32) {
        let (word, value) = (&mut self.0[at / 8], u64::from(value as u32));
        *word = match at % 8 {
            0 => (*word & !0xffff_ffff) | value,
            _ => (*word & 0xffff_ffff) | value << 32,
        };
    }

    /// Where the types of K and V stand: f16 both, after a callback and its data, which are null. Nothing else looks so.
    fn cache_types(&self) -> Option<usize> {
        let mut found = self.0.windows(3).enumerate().filter(|(_, words)| **words == [0, 0, 1 << 32 | 1]);
        let (first, second) = (found.next(), found.next());
        first.filter(|_| second.is_none()).map(|(i, _)| 8 * (i + 2))
    }

    fn set_pointer(&mut self, at: usize, value: *mut c_void) {
        self.0[at / 8] = value as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_block() {
        let mut params = Params([0; 128]);
        params.set_i32(12, -5);
        params.set_i32(8, 7);
        assert_eq!((params.i32(8), params.i32(12), params.0[1]), (7, -5, 0xffff_fffb_0000_0007));
        params.set_pointer(0, ptr::without_provenance_mut(9));
        assert_eq!(params.i32(0), 9);
        assert_eq!(params.cache_types(), None);
        (params.0[20], params.0[21], params.0[22]) = (0, 0, 1 << 32 | 1);
        assert_eq!(params.cache_types(), Some(176));
        params.0[30] = 1 << 32 | 1;
        assert_eq!(params.cache_types(), None);
    }
}
