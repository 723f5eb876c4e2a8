//! Kernel sources, their compilation, and the kernels themselves.
//!
//! Each `.cu` file in `kernels/` is one program; `.cuh` files are headers of
//! all. Sizes that host and kernels share are macros in the compiler's options.

use std::borrow::Cow;
use std::rc::Rc;

use super::cache::Cache;
use super::nvrtc::{Nvrtc, Target};
use super::runtime::{Context, Kernel, Module};
use crate::backend::DeviceError;
use crate::mutants::{self, Edit};

/// Threads per block, in every launch.
pub(super) const GROUP: usize = 128;
/// Slots per tile.
pub(super) const TILE_SLOTS: usize = 32;
/// Weight rows per tile of gemm.
pub(super) const TILE_ROWS: usize = 64;
/// Values of k per step of gemm.
const TILE_K: usize = 16;
/// Weight rows per block of gemv: one per thread of a warp.
pub(super) const VECTOR_LANES: usize = 32;
/// Weight rows per block of gemm_tensor: 32 per warp.
pub(super) const TENSOR_ROWS: usize = GROUP;
/// Marks a place of a tile that holds no slot.
const NO_SLOT: u32 = u32::MAX;

/// The text of one file.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of the file.
    pub name: &'static str,
    /// CUDA C.
    pub text: Cow<'static, str>,
}

impl Source {
    fn is_header(&self) -> bool {
        self.name.ends_with(".cuh")
    }
}

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        [$(Source { name: $name, text: Cow::Borrowed(include_str!(concat!("kernels/", $name))) }),*]
    };
}

/// Every file as it is in the repository.
pub static SOURCES: [Source; 13] = sources![
    "common.cuh",
    "mxfp4.cuh",
    "rows.cuh",
    "argsort.cu",
    "convert.cu",
    "expert.cu",
    "gemm.cu",
    "gemv.cu",
    "moves.cu",
    "reorder.cu",
    "route.cu",
    "tensor.cu",
    "top_k.cu",
];

/// The files with these places replaced. The error is one line.
pub fn edited(edits: &[Edit]) -> Result<Vec<Source>, String> {
    let mut sources = SOURCES.to_vec();
    let mut files: Vec<_> = sources.iter_mut().map(|s| (s.name.to_owned(), &mut s.text)).collect();
    mutants::edit(edits, &mut files)?;
    Ok(sources)
}

/// The kernels of each file.
macro_rules! kernels {
    ($($file:literal: $($name:ident),*;)*) => {
        /// Every kernel of the backend, loaded into one context.
        pub(super) struct Kernels {
            $($(pub(super) $name: Kernel,)*)*
            /// What the kernels belong to.
            _modules: Vec<Module>,
        }

        impl Kernels {
            /// Takes every kernel out of the loaded files.
            fn find(context: &Context, modules: Vec<(&'static str, Module)>) -> Result<Self, DeviceError> {
                let kernel = |file: &str, name: &'static str| {
                    let module = modules.iter().find(|(n, _)| *n == file).map(|(_, module)| module);
                    let module = module.ok_or_else(|| DeviceError(format!("no source is called {file}")))?;
                    context.kernel(module, name)
                };
                Ok(Kernels {
                    $($($name: kernel($file, stringify!($name))?,)*)*
                    _modules: modules.into_iter().map(|(_, module)| module).collect(),
                })
            }
        }
    };
}

kernels! {
    "argsort.cu": argsort_rows, load_entries, sort_blocks, exchange, store_indices;
    "convert.cu": convert, restore, clear_view;
    "expert.cu": expert;
    "gemm.cu": gemm;
    "gemv.cu": gemv;
    "reorder.cu": reorder;
    "route.cu": histogram, scan, pad, scatter;
    "tensor.cu": split, gemm_tensor;
    "top_k.cu": top_k;
}

/// The file whose kernels few devices need.
const MOVES: &str = "moves.cu";

/// The kernels that move pieces.
pub(super) struct Moves {
    pub(super) gather: Kernel,
    pub(super) spread: Kernel,
    /// What the kernels belong to.
    _module: Module,
}

impl Kernels {
    /// Loads all kernels but those that move pieces.
    pub(super) fn load(compiler: &Compiler, context: &Rc<Context>) -> Result<Self, DeviceError> {
        Self::find(context, compiler.load(context, |file| file != MOVES)?)
    }
}

impl Moves {
    /// Loads the kernels when they are first needed.
    pub(super) fn load(compiler: &Compiler, context: &Rc<Context>) -> Result<Self, DeviceError> {
        let loaded = compiler.load(context, |file| file == MOVES)?.pop();
        let (_, module) = loaded.ok_or_else(|| DeviceError(format!("no source is called {MOVES}")))?;
        let kernel = |name| context.kernel(&module, name);
        Ok(Moves { gather: kernel("gather")?, spread: kernel("spread")?, _module: module })
    }
}

/// What a device's kernels are made with, and of.
pub(super) struct Compiler {
    pub(super) nvrtc: Nvrtc,
    pub(super) chip: u32,
    pub(super) sources: Vec<Source>,
}

impl Compiler {
    /// Compiles programs, or takes what an earlier process compiled, and loads them.
    fn load(
        &self,
        context: &Rc<Context>,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<(&'static str, Module)>, DeviceError> {
        let target = self.nvrtc.target(self.chip).map_err(DeviceError)?;
        let wanted: Vec<Source> = self.sources.iter().filter(|s| s.is_header() || is_wanted(s.name)).cloned().collect();
        let compiled = compile(&self.nvrtc, target, &wanted, &Cache::from_environment()).map_err(DeviceError)?;
        compiled.into_iter().map(|(name, image)| Ok((name, context.module(name, image)?))).collect()
    }
}

/// Compiles every program for a target, from scratch. The error is one line.
pub fn compile_all(nvrtc: &Nvrtc, target: Target, sources: &[Source]) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
    compile(nvrtc, target, sources, &Cache::none())
}

fn compile(
    nvrtc: &Nvrtc,
    target: Target,
    sources: &[Source],
    cache: &Cache,
) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
    let (headers, programs): (Vec<&Source>, Vec<&Source>) = sources.iter().partition(|s| s.is_header());
    let options = options();
    let compile = |source: &Source| {
        let key = key(nvrtc, target, source, &headers, &options);
        if let Some(image) = cache.get(&key) {
            return Ok((source.name, image));
        }
        let image = nvrtc.compile(source, &headers, target, &options)?;
        cache.put(&key, &image);
        Ok((source.name, image))
    };
    programs.into_iter().map(compile).collect()
}

/// Everything that decides what the compiler makes of a program.
fn key(nvrtc: &Nvrtc, target: Target, source: &Source, headers: &[&Source], options: &[String]) -> Vec<u8> {
    let head = format!("NVRTC {} {target:?} {options:?}", nvrtc.version());
    let files = [source].into_iter().chain(headers.iter().copied()).flat_map(|s| [s.name, &s.text]);
    // No name, text or option has a NUL.
    [&*head].into_iter().chain(files).collect::<Vec<_>>().join("\0").into_bytes()
}

fn options() -> Vec<String> {
    let defined = [
        ("GROUP", GROUP),
        ("TILE_SLOTS", TILE_SLOTS),
        ("TILE_ROWS", TILE_ROWS),
        ("TILE_K", TILE_K),
        ("VECTOR_LANES", VECTOR_LANES),
        ("TENSOR_ROWS", TENSOR_ROWS),
    ];
    let mut options: Vec<String> =
        defined.iter().map(|(name, value)| format!("--define-macro={name}={value}")).collect();
    options.push(format!("--define-macro=NO_SLOT={NO_SLOT}u"));
    options.push("--std=c++17".to_owned());
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fit_the_group() {
        assert_eq!(VECTOR_LANES, 32, "a warp of gemv shares a block's activations");
        assert_eq!(GROUP / VECTOR_LANES, 4, "gemv has four lane groups, and its precision model counts on it");
        assert_eq!(TILE_SLOTS * TILE_ROWS % GROUP, 0, "threads of gemm share a tile evenly");
        assert_eq!(GROUP % TILE_ROWS, 0);
        assert_eq!(32 % TILE_K, 0, "a step of gemm stays inside a block");
        assert_eq!(TILE_SLOTS, 32, "a warp of gemm_tensor has four times eight slots");
        assert_eq!(TILE_SLOTS * 12 % GROUP, 0, "threads of gemm_tensor share copies evenly");
    }

    #[test]
    fn every_file_is_listed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/backend/cuda/kernels");
        let mut files: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let mut listed: Vec<&str> = SOURCES.iter().map(|s| s.name).collect();
        files.sort_unstable();
        listed.sort_unstable();
        assert_eq!(files, listed);
    }
}
