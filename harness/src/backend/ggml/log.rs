//! ggml's log: to the worker's standard error, which the parent keeps. The last complaint is remembered, because
//! functions that answer with a null pointer say why only here.

// A callback from C receives a C string.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Levels at and above this are complaints: warning 3, error 4. A continuation (5) is none.
const COMPLAINTS: std::ops::RangeInclusive<c_int> = 3..=4;

static LAST: Mutex<String> = Mutex::new(String::new());

/// The function that ggml calls with every message.
pub(super) unsafe extern "C" fn on_message(level: c_int, text: *const c_char, _user: *mut c_void) {
    if text.is_null() {
        return;
    }
    // SAFETY: ggml hands over a terminated string that lives until this returns.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // Nobody is told if the parent is gone.
    let _ = std::io::stderr().write_all(text.as_bytes());
    if COMPLAINTS.contains(&level) && !text.trim().is_empty() {
        let line = text.trim().lines().next().unwrap_or_default();
        line.clone_into(&mut LAST.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Forgets what was said so far.
pub(super) fn forget() {
    LAST.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// The last complaint since [`forget`], as an addition to a message: `: why`, or nothing.
pub(super) fn complaint() -> String {
    let last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_empty() { String::new() } else { format!(": {last}") }
}
