//! Which forms of the kernels a device runs.
//!
//! Where it has `cl_khr_fp16` and rounds to nearest it is listed a second
//! time, with `+f16` behind its key: there `gemm_half` takes the place of gemm
//! and all else stays. Where it has sub-groups, and their kernel compiles,
//! `gemv_subgroups` takes the place of gemv in both.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use conform_cases::model::Kernels;
use opencl3::context::Context;
use opencl3::device::{CL_FP_DENORM, CL_FP_ROUND_TO_NEAREST, Device as ClDevice};
use opencl3::error_codes::ClError;
use opencl3::types::cl_device_id;

use super::program::{SOURCES, compile};
use crate::backend::DeviceInfo;

/// What stands behind the key of a device that multiplies tiles in f16.
const HALF: &str = "+f16";

/// The forms of the kernels that differ between devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Forms {
    /// gemm in f16.
    pub(super) half: bool,
    /// gemv with sub-groups, in the version of OpenCL C that has them.
    pub(super) subgroups: Option<&'static str>,
    /// Interpreted, by somebody who watches.
    pub(super) watched: bool,
}

impl Forms {
    /// The forms of a device as it is listed first.
    pub(super) fn of(device: &ClDevice) -> Result<Self, ClError> {
        let subgroups = language_with_subgroups(device)?.filter(|language| subgroups_compile(device, language));
        Ok(Forms { subgroups, ..Forms::default() })
    }

    /// Whose precision model holds.
    fn kernels(self) -> Kernels {
        match (self.half, self.subgroups.is_some()) {
            (false, false) => Kernels::Own,
            (false, true) => Kernels::OwnSubgroups,
            (true, false) => Kernels::OwnHalf,
            (true, true) => Kernels::OwnHalfSubgroups,
        }
    }

    /// A device as it is listed under these forms.
    pub(super) fn describe(self, mut info: DeviceInfo) -> DeviceInfo {
        info.capabilities.kernels = self.kernels();
        let subgroups = if self.subgroups.is_some() { "used" } else { "none" };
        info.properties.insert("subgroups".to_owned(), subgroups.to_owned());
        if self.half {
            info.key.push_str(HALF);
        }
        info
    }

    /// The kernel that stands for a name under these forms.
    pub(super) fn kernel(self, name: &'static str) -> &'static str {
        match name {
            "gemm" if self.half => "gemm_half",
            "gemv" if self.subgroups.is_some() => "gemv_subgroups",
            _ => name,
        }
    }

    /// The file whose kernels move pieces.
    pub(super) const MOVES: &str = "moves";

    /// Whether a kernel file is used under these forms.
    pub(super) fn uses(self, file: &str) -> bool {
        match file {
            // Compiled when they are first needed.
            Self::MOVES => false,
            "gemm" | "gemm_half" => file == self.kernel("gemm"),
            "gemv" | "gemv_subgroups" => file == self.kernel("gemv"),
            _ => true,
        }
    }

    /// The version of OpenCL C that a kernel file is written in.
    pub(super) fn language(self, file: &str) -> &'static str {
        match self.subgroups {
            Some(language) if file == "gemv_subgroups" => language,
            _ => "CL1.2",
        }
    }
}

/// Whether a device computes in f16, rounding to nearest as the precision model says, and if so whether it may flush what
/// is below the normal numbers.
pub(super) fn half(device: &ClDevice) -> Result<Option<bool>, ClError> {
    if !has_extension(device, "cl_khr_fp16")? {
        return Ok(None);
    }
    let can = device.half_fp_config()?;
    Ok((can & CL_FP_ROUND_TO_NEAREST != 0).then_some(can & CL_FP_DENORM == 0))
}

pub(super) fn has_extension(device: &ClDevice, wanted: &str) -> Result<bool, ClError> {
    Ok(device.extensions()?.split_whitespace().any(|name| name == wanted))
}

/// The version of OpenCL C in which a device has sub-groups: an extension of 2.0, part of 2.1, and a choice from 3.0 on.
fn language_with_subgroups(device: &ClDevice) -> Result<Option<&'static str>, ClError> {
    Ok(match major_minor(&device.version()?) {
        // Asked for how many there can be, a device without them says none.
        version if version >= (2, 1) && device.max_num_sub_groups().is_ok_and(|most| most > 0) => {
            Some(if version >= (3, 0) { "CL3.0" } else { "CL2.0" })
        }
        version if version >= (2, 0) && has_extension(device, "cl_khr_subgroups")? => Some("CL2.0"),
        _ => None,
    })
}

/// The numbers in `OpenCL 3.0 PoCL`; zeros where there are none.
fn major_minor(version: &str) -> (u32, u32) {
    let numbers = version.split_whitespace().nth(1).and_then(|v| v.split_once('.'));
    let parsed = numbers.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parsed.unwrap_or_default()
}

/// Whether the kernel with sub-groups compiles as it is in the repository: tried once for each device.
fn subgroups_compile(device: &ClDevice, language: &'static str) -> bool {
    static TRIED: Mutex<Option<HashMap<usize, bool>>> = Mutex::new(None);
    let forms = Forms { subgroups: Some(language), ..Forms::default() };
    let compiles = || {
        let source = SOURCES.iter().find(|s| s.name == forms.kernel("gemv"))?;
        let context = Context::from_device(device).ok()?;
        compile(&context, source, forms).ok()
    };
    let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
    let id: cl_device_id = device.id();
    *tried.get_or_insert_default().entry(id as usize).or_insert_with(|| compiles().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(major_minor("OpenCL 3.0 PoCL 3.1+debian"), (3, 0));
        assert_eq!(major_minor("OpenCL 1.2 "), (1, 2));
        assert_eq!(major_minor("OpenCL"), (0, 0));
    }

    #[test]
    fn a_form_replaces_its_kernel_and_no_other() {
        let all = Forms { half: true, subgroups: Some("CL3.0"), watched: false };
        assert_eq!(["gemm", "gemv", "scan"].map(|n| all.kernel(n)), ["gemm_half", "gemv_subgroups", "scan"]);
        assert_eq!(["gemm", "gemv"].map(|n| Forms::default().kernel(n)), ["gemm", "gemv"]);
        assert!(all.uses("gemm_half") && !all.uses("gemm") && all.uses("route") && !Forms::default().uses("gemm_half"));
        assert_eq!((all.language("gemv_subgroups"), all.language("gemm_half")), ("CL3.0", "CL1.2"));
        assert_eq!(all.kernels(), Kernels::OwnHalfSubgroups);
    }
}
