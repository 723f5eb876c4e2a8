//! Loading a build: libggml-base, then libggml, then one backend after the other.
//!
//! Two kinds of build exist. In one, backends are modules that libggml loads
//! when asked: they have a function `ggml_backend_init`. In the other, a plain
//! shared build, libggml is linked to its backends and knows them from the
//! start. Nothing is ever unloaded: backends keep threads and handlers of exit.

// Running foreign code is what this file is for.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

use super::api::{Base, Core, ModuleApi, Reg};
use super::files::{Files, Module, file_name};
use super::log;

/// A loaded build.
pub(super) struct Ggml {
    pub(super) base: Base,
    pub(super) core: Core,
    /// Where it came from.
    pub(super) files: Files,
    /// The names of its element types, read once: each costs a search in the library's symbols.
    pub(super) type_names: OnceLock<Vec<String>>,
}

/// Why a module gave no backend.
pub(super) enum NoModule {
    /// It is no module: libggml is linked to it.
    Linked,
    /// It was compiled for another processor, as it says itself.
    OtherProcessor,
    /// It does not belong to this build, in one line: the folder is a mixture.
    Foreign(String),
    /// Anything else, in one line: usually the driver of a GPU is not installed.
    Failed(String),
}

impl Ggml {
    /// Loads the build in a folder, the first time it is called; a process has room for one.
    pub(super) fn load(dir: &Path) -> Result<&'static Self, String> {
        static LOADED: OnceLock<(PathBuf, Result<Ggml, String>)> = OnceLock::new();
        let (loaded, ggml) = LOADED.get_or_init(|| (dir.to_owned(), Self::open(dir)));
        if loaded != dir {
            return Err(format!("{}: this process already drives {}", dir.display(), loaded.display()));
        }
        ggml.as_ref().map_err(Clone::clone)
    }

    fn open(dir: &Path) -> Result<Self, String> {
        let files = Files::find(dir)?;
        let in_file = |path: &Path, why: String| format!("{}: {why}", path.display());
        // Global, so that libraries which were not linked to it find it all the same.
        let base_library = open(&files.base, RTLD_GLOBAL).map_err(|why| in_file(&files.base, why))?;
        // SAFETY: the file has the name of ggml's base library, and `open` never unloads.
        let base = unsafe { Base::resolve(&base_library) }.map_err(|why| in_file(&files.base, too_old(&why)))?;
        base.take_log();
        let core_library = open_core(&files).map_err(|why| in_file(&files.core, why))?;
        // SAFETY: as above, for the library that holds the registry.
        let core = unsafe { Core::resolve(&core_library) }.map_err(|why| in_file(&files.core, too_old(&why)))?;
        Ok(Ggml { base, core, files, type_names: OnceLock::new() })
    }

    /// The backends that libggml knows: at first those that it is linked to, none where they are modules.
    pub(super) fn linked(&self) -> Vec<*mut Reg> {
        // SAFETY: both functions take no pointer, and the index is below the count.
        unsafe { (0..(self.core.ggml_backend_reg_count)()).map(|i| (self.core.ggml_backend_reg_get)(i)).collect() }
    }

    /// Loads one backend.
    pub(super) fn load_module(&self, module: &Module) -> Result<*mut Reg, NoModule> {
        let failed = |why: String| {
            // What the dynamic loader, and ggml in its log, say of a library of another build.
            let is_foreign = ["undefined symbol", "incompatible API version"].iter().any(|mark| why.contains(mark));
            let why = format!("{}: {why}", module.path.display());
            if is_foreign { NoModule::Foreign(why) } else { NoModule::Failed(why) }
        };
        let library = open(&module.path, RTLD_LOCAL).map_err(failed)?;
        // SAFETY: the file has the name of a backend of ggml's, and `open` never unloads.
        let api = unsafe { ModuleApi::resolve(&library) }.map_err(failed)?;
        if api.ggml_backend_init.is_none() {
            return Err(NoModule::Linked);
        }
        // SAFETY: it takes nothing and asks the processor what it can do; the same call is how ggml chooses.
        if api.ggml_backend_score.is_some_and(|score| unsafe { score() } == 0) {
            return Err(NoModule::OtherProcessor);
        }
        let path = c_path(&module.path).map_err(failed)?;
        log::forget();
        // SAFETY: the path is a terminated string. The module is of the same folder as libggml, which compares API
        // versions before it uses it.
        let reg = unsafe { (self.core.ggml_backend_load)(path.as_ptr()) };
        if reg.is_null() {
            return Err(failed(format!("ggml_backend_load refuses it{}", log::complaint())));
        }
        Ok(reg)
    }

    /// Makes sure that there is a CPU backend, which libllama needs beside any other: whichever variant runs here.
    pub(super) fn need_cpu(&self) -> Result<(), String> {
        // SAFETY: the pointers are the registry's own.
        let names = self.linked().into_iter().filter_map(|reg| unsafe { text((self.base.ggml_backend_reg_name)(reg)) });
        if names.into_iter().any(|name| name == "CPU") {
            return Ok(());
        }
        let mut variants = self.files.modules.iter().filter(|module| module.backend == "cpu");
        match variants.any(|module| self.load_module(module).is_ok()) {
            true => Ok(()),
            false => Err("no CPU backend of this build can be loaded, which libllama needs".to_owned()),
        }
    }

    /// Version and commit, where the build tells.
    pub(super) fn version(&self) -> (Option<String>, Option<String>) {
        // SAFETY: the functions take nothing and return strings that live as long as the library.
        let ask = |f: Option<unsafe extern "C" fn() -> *const c_char>| f.and_then(|f| unsafe { text(f()) });
        (ask(self.base.ggml_version), ask(self.base.ggml_commit))
    }
}

/// A string of ggml's, if there is one.
///
/// # Safety
/// The pointer must be null or point to a terminated string.
pub(super) unsafe fn text(string: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned())
}

/// Opens a library that belongs to a loaded build.
pub(super) fn open_whole(path: &Path) -> Result<std::mem::ManuallyDrop<Library>, String> {
    open(path, RTLD_LOCAL)
}

/// Opens a library and keeps it for good. The error is the loader's own, without the path that the caller knows.
fn open(path: &Path, scope: i32) -> Result<std::mem::ManuallyDrop<Library>, String> {
    // SAFETY: this runs the initialisers of foreign code, in a process that exists for that and may die of it. The file
    // was seen to be a whole library for this machine, so that its pages exist.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | scope) };
    library.map(std::mem::ManuallyDrop::new).map_err(|e| {
        let text = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        format!("cannot be loaded: {}", text.trim_start_matches(&*format!("{}: ", path.display())))
    })
}

/// Opens libggml. A plain build may be linked to backends that the loader does not find by itself, because the folder
/// was moved: they are opened first then, as many as it takes.
fn open_core(files: &Files) -> Result<std::mem::ManuallyDrop<Library>, String> {
    let mut pending: Vec<&Path> = files.modules.iter().map(|m| m.path.as_path()).collect();
    loop {
        let why = match open(&files.core, RTLD_LOCAL) {
            Ok(library) => return Ok(library),
            Err(why) => why,
        };
        let before = pending.len();
        // Among them one may need another, so failures are tried again in the next round.
        pending.retain(|path| !why.contains(&file_name(path)) || open(path, RTLD_GLOBAL).is_err());
        if pending.len() == before {
            return Err(why);
        }
    }
}

fn too_old(why: &str) -> String {
    format!("{why}; builds from b4753 (February 2025) on can be driven")
}

fn c_path(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| "has a NUL in its name".to_owned())
}
