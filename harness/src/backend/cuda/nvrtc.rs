//! NVRTC, the compiler for CUDA C in a library.
//!
//! `CONFORM_NVRTC` names the library's file; without it the dynamic loader is
//! asked, then the usual places of a CUDA toolkit are looked at.

// Foreign functions are called by pointers that were looked up by name.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use libloading::Library;

use super::api::why_not;
use super::program::Source;

/// Environment variable with the path of the library.
const PATH: &str = "CONFORM_NVRTC";

/// Major versions of the library that are looked for by name, the newest first.
const MAJORS: [c_int; 2] = [13, 12];

type Code = c_int;
type RawProgram = *mut c_void;

/// A struct of functions, and where each comes from.
macro_rules! functions {
    ($($name:ident($($parameter:ty),*) $(-> $result:ty)?;)*) => {
        #[allow(non_snake_case, reason = "the functions' own names")]
        struct Functions {
            $($name: unsafe extern "C" fn($($parameter),*) -> functions!(@result $($result)?),)*
        }

        impl Functions {
            /// Looks up every function. The error is the name of one that is missing.
            fn resolve(library: &Library) -> Result<Self, &'static str> {
                Ok(Functions { $($name: symbol(library, stringify!($name))?,)* })
            }
        }
    };
    (@result) => { Code };
    (@result $result:ty) => { $result };
}

functions! {
    nvrtcVersion(*mut c_int, *mut c_int);
    nvrtcGetNumSupportedArchs(*mut c_int);
    nvrtcGetSupportedArchs(*mut c_int);
    nvrtcCreateProgram(*mut RawProgram, *const c_char, *const c_char, c_int, *const *const c_char,
        *const *const c_char);
    nvrtcDestroyProgram(*mut RawProgram);
    nvrtcCompileProgram(RawProgram, c_int, *const *const c_char);
    nvrtcGetProgramLogSize(RawProgram, *mut usize);
    nvrtcGetProgramLog(RawProgram, *mut c_char);
    nvrtcGetPTXSize(RawProgram, *mut usize);
    nvrtcGetPTX(RawProgram, *mut c_char);
    nvrtcGetCUBINSize(RawProgram, *mut usize);
    nvrtcGetCUBIN(RawProgram, *mut c_char);
    nvrtcGetErrorString(Code) -> *const c_char;
}

fn symbol<F: Copy>(library: &Library, name: &'static str) -> Result<F, &'static str> {
    // SAFETY: the symbol is stored as the function of that name, whose parameters have not changed since CUDA 11.
    unsafe { library.get::<F>(name.as_bytes()) }.map(|f| *f).map_err(|_| name)
}

/// What is compiled for: machine code of one architecture, or the assembly that a driver translates for newer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Compute capability times ten: 90 for 9.0.
    pub arch: u32,
    /// Machine code (CUBIN) if true, else assembly (PTX).
    pub is_binary: bool,
}

/// The loaded compiler.
pub struct Nvrtc {
    functions: Functions,
    version: (c_int, c_int),
    _library: Library,
}

impl Nvrtc {
    /// Finds and opens the library. A driver whose major version is known is served best by the compiler of the same.
    /// The error says in one line what was looked for.
    pub fn open(driver: Option<i32>) -> Result<Self, String> {
        if let Some(path) = std::env::var_os(PATH) {
            let shown = Path::new(&path).display().to_string();
            return Self::open_file(&path)
                .map_err(|why| format!("{PATH}={shown}: {}", why.unwrap_or_else(|| why_not(&shown))));
        }
        let mut majors = MAJORS.to_vec();
        majors.sort_by_key(|major| Some(*major) != driver);
        let names = majors.iter().map(|major| format!("libnvrtc.so.{major}")).chain([String::from("libnvrtc.so")]);
        for name in names {
            let places =
                [OsString::from(&name)].into_iter().chain(toolkits().map(|dir| Path::new(&dir).join(&name).into()));
            for place in places {
                match Self::open_file(&place) {
                    Ok(nvrtc) => return Ok(nvrtc),
                    // It is not there, or it is one that can't be used.
                    Err(None) => {}
                    Err(Some(why)) => return Err(format!("{}: {why}", Path::new(&place).display())),
                }
            }
        }
        Err(format!("no NVRTC, which compiles the kernels: {}; {PATH} may name its file", why_not("libnvrtc.so.12")))
    }

    /// The error is none where the library can't be opened.
    fn open_file(path: &OsString) -> Result<Self, Option<String>> {
        // SAFETY: runs the initialisers of the compiler's library, in a process that exists for that.
        let library = unsafe { Library::new(path) }.map_err(|_| None)?;
        let functions = Functions::resolve(&library).map_err(|name| Some(format!("it has no {name}")))?;
        let mut version = (0, 0);
        // SAFETY: both pointers are valid for the call.
        let code = unsafe { (functions.nvrtcVersion)(&mut version.0, &mut version.1) };
        let nvrtc = Nvrtc { functions, version, _library: library };
        nvrtc.check("nvrtcVersion", code).map_err(Some)?;
        Ok(nvrtc)
    }

    /// Its version, in words.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// How to compile for a chip: as machine code where the compiler knows it, else as assembly for the newest it knows
    /// that is older.
    pub fn target(&self, chip: u32) -> Result<Target, String> {
        let mut count = 0;
        // SAFETY: the pointer is valid for the call.
        self.check("nvrtcGetNumSupportedArchs", unsafe { (self.functions.nvrtcGetNumSupportedArchs)(&mut count) })?;
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: there is room for as many numbers as the compiler said.
        self.check("nvrtcGetSupportedArchs", unsafe { (self.functions.nvrtcGetSupportedArchs)(archs.as_mut_ptr()) })?;
        let known = archs.iter().filter_map(|arch| u32::try_from(*arch).ok()).filter(|arch| *arch <= chip).max();
        let version = self.version();
        let arch = known.ok_or_else(|| {
            format!("NVRTC {version} does not compile for compute capability {}.{}", chip / 10, chip % 10)
        })?;
        Ok(Target { arch, is_binary: arch == chip })
    }

    /// Compiles one file, which may include any of the headers. The error is one line.
    pub fn compile(
        &self,
        source: &Source,
        headers: &[&Source],
        target: Target,
        options: &[String],
    ) -> Result<Vec<u8>, String> {
        let file = source.name;
        let kind = if target.is_binary { "sm" } else { "compute" };
        let architecture = format!("--gpu-architecture={kind}_{}", target.arch);
        let text = |s: &str| CString::new(s).map_err(|_| format!("{file}: a NUL in the source or an option"));
        let program = Program::create(
            self,
            &text(&source.text)?,
            &text(file)?,
            &texts(headers, |h| &h.text)?,
            &texts(headers, |h| h.name)?,
        )
        .map_err(|e| format!("{file}: {e}"))?;
        let options: Vec<CString> =
            options.iter().chain([&architecture]).map(|o| text(o)).collect::<Result<_, String>>()?;
        let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        // SAFETY: the program lives, and the options are terminated strings that outlive the call.
        let code =
            unsafe { (self.functions.nvrtcCompileProgram)(program.raw, options.len() as c_int, options.as_ptr()) };
        if let Err(why) = self.check("nvrtcCompileProgram", code) {
            let f = &self.functions;
            let log = program.bytes("log", f.nvrtcGetProgramLogSize, f.nvrtcGetProgramLog).unwrap_or_default();
            return Err(format!("{file}: {why}{}", first_error(&String::from_utf8_lossy(&log))));
        }
        let f = &self.functions;
        let image = match target.is_binary {
            true => program.bytes("nvrtcGetCUBIN", f.nvrtcGetCUBINSize, f.nvrtcGetCUBIN),
            false => program.bytes("nvrtcGetPTX", f.nvrtcGetPTXSize, f.nvrtcGetPTX),
        };
        image.map_err(|e| format!("{file}: {e}"))
    }

    fn check(&self, call: &str, code: Code) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function returns a string of the library's own for any code.
        let text = unsafe {
            let text = (self.functions.nvrtcGetErrorString)(code);
            if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
        };
        Err(format!("{call}: {}", text.unwrap_or_else(|| format!("error {code}"))))
    }
}

/// Where toolkits keep their libraries.
fn toolkits() -> impl Iterator<Item = OsString> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    named.chain([OsString::from("/usr/local/cuda")]).map(|root| Path::new(&root).join("lib64").into())
}

/// A property of each header, as C wants it.
fn texts(headers: &[&Source], of: impl Fn(&Source) -> &str) -> Result<Vec<CString>, String> {
    headers.iter().map(|h| CString::new(of(h)).map_err(|_| format!("{}: a NUL in the source", h.name))).collect()
}

/// A program of the compiler's, destroyed when dropped.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    raw: RawProgram,
}

impl<'a> Program<'a> {
    fn create(
        nvrtc: &'a Nvrtc,
        source: &CStr,
        name: &CStr,
        headers: &[CString],
        names: &[CString],
    ) -> Result<Self, String> {
        let [headers, names] = [headers, names].map(|s| s.iter().map(|s| s.as_ptr()).collect::<Vec<_>>());
        let mut raw = ptr::null_mut();
        // SAFETY: all strings are terminated and outlive the call, which copies them; both lists have this length.
        let code = unsafe {
            (nvrtc.functions.nvrtcCreateProgram)(
                &mut raw,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                headers.as_ptr(),
                names.as_ptr(),
            )
        };
        nvrtc.check("nvrtcCreateProgram", code)?;
        Ok(Program { nvrtc, raw })
    }

    /// Something that the compiler made.
    fn bytes(
        &self,
        call: &str,
        size: unsafe extern "C" fn(RawProgram, *mut usize) -> Code,
        get: unsafe extern "C" fn(RawProgram, *mut c_char) -> Code,
    ) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program lives, and the pointer is valid for the call.
        self.nvrtc.check(call, unsafe { size(self.raw, &mut bytes) })?;
        let mut made = vec![0u8; bytes];
        // SAFETY: there is room for as many bytes as the compiler said.
        self.nvrtc.check(call, unsafe { get(self.raw, made.as_mut_ptr().cast()) })?;
        Ok(made)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created and is destroyed once.
        unsafe { (self.nvrtc.functions.nvrtcDestroyProgram)(&mut self.raw) };
    }
}

/// What a log complains of first, or nothing.
fn first_error(log: &str) -> String {
    let lines = || log.lines().map(|l| l.trim().trim_end_matches('\0')).filter(|l| !l.is_empty());
    let line = lines().find(|l| l.contains("error")).or_else(|| lines().next());
    line.map(|l| format!(": {l}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_of_a_log_is_found() {
        assert_eq!(first_error("a.cu(1): warning: b\n\na.cu(3): error: c\nerror: d\n\0"), ": a.cu(3): error: c");
        assert_eq!(first_error("\nonly this\n\0"), ": only this");
        assert_eq!(first_error("\0"), "");
    }
}
