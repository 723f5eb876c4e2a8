//! Errors of the driver.

use opencl3::error_codes::ClError;

use crate::backend::DeviceError;

/// Turns a driver's error code into a line that names the call and its object.
pub(super) fn failed(call: &str, object: &str) -> impl FnOnce(ClError) -> DeviceError {
    let what = format!("{call} {object}");
    move |e| DeviceError(format!("{what}: {e}"))
}
