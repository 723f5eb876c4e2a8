//! Kernel sources, their compilation, and the kernels themselves.
//!
//! Each file in `kernels/` is one program; those of another form than the
//! device's (`forms`) are not compiled. Sizes that host and kernels share
//! are macros defined on the compiler's command line. Conventions of all
//! kernels: one dimension of work-items in groups of [`GROUP`], with bounds
//! checked inside; a view is four 64-bit words, its byte offset and its byte
//! strides in dimensions 1, 2 and 3.

use std::borrow::Cow;

use opencl3::context::Context;
use opencl3::device::Device as ClDevice;
use opencl3::error_codes::CL_BUILD_PROGRAM_FAILURE;
use opencl3::kernel::Kernel as ClKernel;
use opencl3::program::Program;

use super::error::failed;
use super::forms::Forms;
use super::gather::Moves;
use super::oclgrind;
use crate::backend::{DeviceError, LoadError};
use crate::mutants::{self, Edit};

/// Work-items per work-group, in every launch.
pub(super) const GROUP: usize = 64;
/// Slots per tile.
pub(super) const TILE_SLOTS: usize = 32;
/// Weight rows per tile of gemm: one per work-item.
pub(super) const TILE_ROWS: usize = GROUP;
/// Values of k per step of gemm.
const TILE_K: usize = 16;
/// Weight rows per work-group of gemv.
pub(super) const VECTOR_LANES: usize = 16;
/// Marks a place of a tile that holds no slot.
const NO_SLOT: u32 = u32::MAX;

/// Environment variable with further options for the kernel compiler.
const OPTIONS: &str = "CONFORM_OPENCL_OPTIONS";

/// The text of one kernel file.
#[derive(Clone, Debug)]
pub struct Source {
    /// File name without its extension.
    pub name: &'static str,
    /// OpenCL C.
    pub text: Cow<'static, str>,
}

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        [$(Source { name: $name, text: Cow::Borrowed(include_str!(concat!("kernels/", $name, ".cl"))) }),*]
    };
}

/// Every kernel file as it is in the repository.
pub static SOURCES: [Source; 13] = sources![
    "argsort",
    "convert",
    "expert",
    "fill",
    "gemm",
    "gemm_half",
    "gemv",
    "gemv_subgroups",
    "moves",
    "reorder",
    "restore",
    "route",
    "top_k",
];

/// What an MXFP4 block means: the header of several kernels.
const HEADER: Source = Source { name: "mxfp4", text: Cow::Borrowed(include_str!("kernels/mxfp4.clh")) };

/// The kernel files with these places replaced. An edited header is put into the files that include it. The error is one
/// line.
pub fn edited(edits: &[Edit]) -> Result<Vec<Source>, String> {
    let (mut sources, mut header) = (SOURCES.to_vec(), HEADER);
    let mut files: Vec<_> = sources.iter_mut().map(|s| (format!("{}.cl", s.name), &mut s.text)).collect();
    files.push((format!("{}.clh", HEADER.name), &mut header.text));
    mutants::edit(edits, &mut files)?;
    if header.text != HEADER.text {
        for source in &mut sources {
            source.text = Cow::Owned(included(&source.text, &header.text).into_owned());
        }
    }
    Ok(sources)
}

/// A compiled kernel.
pub(super) struct Kernel {
    pub(super) name: &'static str,
    pub(super) raw: ClKernel,
    /// The largest work-group this kernel can have on its device.
    max_group: usize,
    /// Bytes of local memory the kernel declares, and those the device has.
    local_mem: [u64; 2],
}

impl Kernel {
    /// A kernel of a compiled program.
    fn new(context: &Context, program: &Program, name: &'static str) -> Result<Self, DeviceError> {
        let raw = ClKernel::create(program, name).map_err(failed("clCreateKernel", name))?;
        let device = ClDevice::new(context.default_device());
        let max_group = raw.get_work_group_size(device.id());
        let max_group = max_group.map_err(failed("clGetKernelWorkGroupInfo", name))?;
        // Every kernel requires its size. Where the compiler took it, that counts: rusticl answers 32 whatever it took.
        let required = raw.get_compile_work_group_size(device.id());
        let required = required.map_err(failed("clGetKernelWorkGroupInfo", name))?;
        let max_group = max_group.max(required.iter().product());
        let needs = raw.get_local_mem_size(device.id());
        let needs = needs.map_err(failed("clGetKernelWorkGroupInfo", name))?;
        let has = device.local_mem_size().map_err(failed("clGetDeviceInfo", "CL_DEVICE_LOCAL_MEM_SIZE"))?;
        Ok(Kernel { name, raw, max_group, local_mem: [needs, has] })
    }

    /// Refuses a kernel that cannot be launched in groups of [`GROUP`].
    pub(super) fn supported(&self) -> Result<(), LoadError> {
        let (name, limit, [needs, has]) = (self.name, self.max_group, self.local_mem);
        if limit < GROUP {
            let why = format!("{name} needs work-groups of {GROUP}, CL_KERNEL_WORK_GROUP_SIZE is {limit}");
            return Err(LoadError::Unsupported(why));
        }
        if needs > has {
            let why = format!("{name} needs {needs} bytes of local memory, CL_DEVICE_LOCAL_MEM_SIZE is {has}");
            return Err(LoadError::Unsupported(why));
        }
        Ok(())
    }
}

/// Every kernel of the backend, compiled for one device.
pub(super) struct Kernels {
    pub(super) fill: Kernel,
    pub(super) clear_view: Kernel,
    pub(super) dirty: Kernel,
    pub(super) convert: Kernel,
    pub(super) restore: Kernel,
    pub(super) histogram: Kernel,
    pub(super) scan: Kernel,
    pub(super) pad: Kernel,
    pub(super) scatter: Kernel,
    pub(super) reorder: Kernel,
    pub(super) gemm: Kernel,
    pub(super) gemv: Kernel,
    pub(super) expert: Kernel,
    pub(super) argsort_rows: Kernel,
    pub(super) load_keys: Kernel,
    pub(super) sort_blocks: Kernel,
    pub(super) exchange: Kernel,
    pub(super) store_indices: Kernel,
    pub(super) top_k: Kernel,
}

impl Kernels {
    /// Compiles all sources of these forms for the device of `context`.
    pub(super) fn compile(context: &Context, sources: &[Source], forms: Forms) -> Result<Self, DeviceError> {
        let [gemm, gemv] = ["gemm", "gemv"].map(|name| forms.kernel(name));
        let used = sources.iter().filter(|s| forms.uses(s.name));
        let compiled: Result<Vec<_>, _> = used.map(|s| Ok((s.name, compile(context, s, forms)?))).collect();
        let compiled: Vec<(&str, Program)> = compiled?;
        let kernel = |file: &str, name: &'static str| {
            let program = compiled.iter().find(|(n, _)| *n == file).map(|(_, p)| p);
            Kernel::new(context, program.ok_or_else(|| DeviceError(format!("no source is called {file}")))?, name)
        };
        Ok(Kernels {
            fill: kernel("fill", "fill")?,
            clear_view: kernel("fill", "clear_view")?,
            dirty: kernel("fill", "dirty")?,
            convert: kernel("convert", "convert")?,
            restore: kernel("restore", "restore")?,
            histogram: kernel("route", "histogram")?,
            scan: kernel("route", "scan")?,
            pad: kernel("route", "pad")?,
            scatter: kernel("route", "scatter")?,
            reorder: kernel("reorder", "reorder")?,
            gemm: kernel(gemm, gemm)?,
            gemv: kernel(gemv, gemv)?,
            expert: kernel("expert", "expert")?,
            argsort_rows: kernel("argsort", "argsort_rows")?,
            load_keys: kernel("argsort", "load_keys")?,
            sort_blocks: kernel("argsort", "sort_blocks")?,
            exchange: kernel("argsort", "exchange")?,
            store_indices: kernel("argsort", "store_indices")?,
            top_k: kernel("top_k", "top_k")?,
        })
    }
}

impl Moves {
    /// Compiles the kernels that move pieces, which few devices need.
    pub(super) fn compile(context: &Context, forms: Forms) -> Result<Self, DeviceError> {
        let source = SOURCES.iter().find(|s| s.name == Forms::MOVES);
        let source = source.ok_or_else(|| DeviceError(format!("no source is called {}", Forms::MOVES)))?;
        let program = compile(context, source, forms)?;
        let kernel = |name| Kernel::new(context, &program, name);
        Ok(Moves { gather: kernel("gather")?, spread: kernel("spread")? })
    }
}

fn options(forms: Forms, file: &str) -> String {
    let language = forms.language(file);
    let mut options = format!(
        "-cl-std={language} -D GROUP={GROUP} -D TILE_SLOTS={TILE_SLOTS} -D TILE_ROWS={TILE_ROWS} -D TILE_K={TILE_K} \
         -D VECTOR_LANES={VECTOR_LANES} -D NO_SLOT={NO_SLOT}u"
    );
    if forms.watched {
        options.push(' ');
        options.push_str(oclgrind::OPTIONS);
    }
    if let Ok(more) = std::env::var(OPTIONS) {
        options.push(' ');
        options.push_str(&more);
    }
    options
}

/// Compiles one source for the device of `context`.
pub(super) fn compile(context: &Context, source: &Source, forms: Forms) -> Result<Program, DeviceError> {
    let file = format!("{}.cl", source.name);
    let mut program = Program::create_from_source(context, &included(&source.text, &HEADER.text))
        .map_err(failed("clCreateProgramWithSource", &file))?;
    if let Err(e) = program.build(context.devices(), &options(forms, source.name)) {
        let log = match e.0 {
            CL_BUILD_PROGRAM_FAILURE => program.get_build_log(context.default_device()).unwrap_or_default(),
            _ => String::new(),
        };
        return Err(DeviceError(format!("clBuildProgram {file}: {e}{}", first_error(&log))));
    }
    Ok(program)
}

/// A kernel file with the header that it includes, if it does: no OpenCL compiler finds one by itself.
fn included<'a>(text: &'a str, header: &str) -> Cow<'a, str> {
    const LINE: &str = "#include \"mxfp4.clh\"\n";
    match text.split_once(LINE) {
        Some((before, after)) => {
            // Errors keep the line numbers of the file.
            let next = before.lines().count() + 2;
            Cow::Owned(format!("{before}{header}#line {next}\n{after}"))
        }
        None => Cow::Borrowed(text),
    }
}

/// What a build log complains of first, or nothing.
fn first_error(log: &str) -> String {
    let lines = || log.lines().map(str::trim).filter(|l| !l.is_empty());
    let line = lines().find(|l| l.to_ascii_lowercase().contains("error")).or_else(|| lines().next());
    line.map(|l| format!(": {l}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_put_in_place_and_lines_keep_their_numbers() {
        let included = |text| included(text, &HEADER.text);
        let text = included("a\nb\n#include \"mxfp4.clh\"\nc\n");
        assert!(text.starts_with("a\nb\n// What an MXFP4 block means") && text.ends_with("}\n#line 4\nc\n"), "{text}");
        assert_eq!(included("a\n"), "a\n");
        let users = SOURCES.iter().filter(|s| matches!(included(&s.text), Cow::Owned(_))).map(|s| s.name);
        assert_eq!(users.collect::<Vec<_>>(), ["gemm", "gemm_half", "gemv", "gemv_subgroups"]);
    }

    #[test]
    fn the_first_error_of_a_log_is_found() {
        assert_eq!(first_error("warning: a\n\n x.cl:3: error: b\nerror: c\n"), ": x.cl:3: error: b");
        assert_eq!(first_error("\nonly this\n"), ": only this");
        assert_eq!(first_error(""), "");
    }

    #[test]
    fn tiles_fit_the_group() {
        assert_eq!(GROUP % VECTOR_LANES, 0);
        assert_eq!(GROUP / VECTOR_LANES, 4, "gemv has four lane groups");
        assert_eq!(32 % TILE_K, 0, "a step of gemm stays inside a block");
        assert_eq!(TILE_K % 8, 0, "a step of gemm is whole words of codes");
    }
}
