//! The CUDA driver's functions as this backend calls them.
//!
//! `cudarc` knows where the library lies and what its functions take. Its own
//! calls end in a panic where a symbol is missing, and bring results into an
//! enumeration that a newer driver has more values of. So all symbols are
//! looked up once, before anything is called, and a result is a number.

// Function pointers are taken from a library by name; that their parameters are right is checked against `cudarc` below.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys;
use cudarc::driver::sys::{CUDA_MEMCPY2D, CUresult, CUstream, CUuuid};
pub(super) use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUfunction, CUmodule};

/// A function's answer; zero is success.
pub(super) type Code = c_uint;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) const OUT_OF_MEMORY: Code = 2;

/// A struct of functions, and where each comes from.
macro_rules! functions {
    ($($name:ident($($parameter:ty),*);)*) => {
        /// Every function of the driver that this backend calls.
        #[allow(non_snake_case, reason = "the functions' own names")]
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($parameter),*) -> Code,)*
            cuGetErrorName: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
            cuGetErrorString: unsafe extern "C" fn(Code, *mut *const c_char) -> Code,
        }

        // The bindings take the same parameters.
        $(const _: unsafe fn($($parameter),*) -> CUresult = sys::$name;)*

        impl Api {
            /// Looks up every function. The error is the name of one that is missing.
            fn resolve() -> Result<Self, &'static str> {
                Ok(Api {
                    $($name: symbol(stringify!($name))?,)*
                    cuGetErrorName: symbol("cuGetErrorName")?,
                    cuGetErrorString: symbol("cuGetErrorString")?,
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
    cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuCtxSetCurrent(CUcontext);
    cuCtxSynchronize();
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut CUdeviceptr, usize);
    cuMemFree_v2(CUdeviceptr);
    cuMemcpyHtoD_v2(CUdeviceptr, *const c_void, usize);
    cuMemcpyDtoH_v2(*mut c_void, CUdeviceptr, usize);
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
    cuMemcpy2DAsync_v2(*const CUDA_MEMCPY2D, CUstream);
    cuMemsetD32Async(CUdeviceptr, c_uint, usize, CUstream);
    cuModuleLoadData(*mut CUmodule, *const c_void);
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuLaunchKernel(CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void,
        *mut *mut c_void);
}

/// A function of the library, which must be there.
fn symbol<F: Copy>(name: &'static str) -> Result<F, &'static str> {
    // SAFETY: the caller has seen that the library can be opened, and stores the symbol as the function of that name.
    unsafe { sys::culib().get::<F>(name.as_bytes()) }.map(|f| *f).map_err(|_| name)
}

impl Api {
    /// The driver, opened and initialised the first time it is asked for. The error says in one line what is not there.
    pub(super) fn get() -> Result<&'static Self, String> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        API.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Self, String> {
        // SAFETY: runs the initialisers of the driver's library, in a process that exists for that.
        if !unsafe { sys::is_culib_present() } {
            return Err(format!("no CUDA driver: {}", why_not("libcuda.so.1")));
        }
        let api = Self::resolve().map_err(|name| format!("the CUDA driver's library has no {name}: it is too old"))?;
        // SAFETY: takes no pointer, and may be called at any time.
        api.check(unsafe { (api.cuInit)(0) }).map_err(|e| format!("cuInit: {e}"))?;
        Ok(api)
    }

    /// The error's name and text where a function did not succeed.
    pub(super) fn check(&self, code: Code) -> Result<(), Failure> {
        match code {
            0 => Ok(()),
            _ => Err(Failure { code, text: self.describe(code) }),
        }
    }

    fn describe(&self, code: Code) -> String {
        let ask = |f: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text = ptr::null();
            // SAFETY: the driver writes a pointer to a string of its own, or null for a code it does not know.
            unsafe {
                let answer = f(code, &mut text);
                (answer == 0 && !text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        match (ask(self.cuGetErrorName), ask(self.cuGetErrorString)) {
            (Some(name), Some(text)) => format!("{name} ({code}), {text}"),
            (Some(name), None) => format!("{name} ({code})"),
            _ => format!("error {code}, unknown to the driver"),
        }
    }
}

/// What a function answered instead of success.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) code: Code,
    text: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// What the dynamic loader says of a library, in one line.
pub(super) fn why_not(library: &str) -> String {
    // SAFETY: as for `is_culib_present`.
    match unsafe { libloading::Library::new(library) } {
        Ok(_) => format!("{library} can be opened"),
        Err(e) => std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string).replace('\n', " "),
    }
}
