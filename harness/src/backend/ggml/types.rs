//! ggml's element types, found by their names: their numbers, and what their blocks mean.

// Reads names and calls routines that the library hands out.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use conform_cases::formats::ElemType;

use super::library::Ggml;
use super::memory::Context;
use crate::backend::{DeviceError, LoadError};

/// More types than ggml has ever had.
const MOST: c_int = 128;

/// No name is longer: those of types that were removed are sentences.
const LONGEST: usize = 128;

/// The number of a type in this build. The error says what the build has instead.
pub(super) fn number(ggml: &'static Ggml, ty: ElemType) -> Result<c_int, String> {
    let name = ty.name();
    let names = ggml.type_names.get_or_init(|| names(ggml).collect());
    let number = names.iter().position(|n| n.eq_ignore_ascii_case(name)).and_then(|n| c_int::try_from(n).ok());
    let number = number.ok_or_else(|| format!("this build has no type {name}"))?;
    // SAFETY: the number is that of a type, as its name shows.
    let (elements, bytes) = unsafe {
        let block = (ggml.base.ggml_blck_size)(number);
        (block, (ggml.base.ggml_row_size)(number, block))
    };
    if (usize::try_from(elements), bytes) != (Ok(ty.block_len()), ty.block_bytes()) {
        let (len, size) = (ty.block_len(), ty.block_bytes());
        return Err(format!(
            "blocks of {name} are {elements} elements in {bytes} bytes in this build, not {len} in {size}"
        ));
    }
    Ok(number)
}

/// Decodes whole blocks with the build's own routine. The error says why it cannot.
pub(super) fn decode(ggml: &'static Ggml, ty: ElemType, blocks: &[u8], out: &mut [f32]) -> Result<(), LoadError> {
    let unsupported = LoadError::Unsupported;
    let number = number(ggml, ty).map_err(unsupported)?;
    // Old builds look f16 numbers up in a table that the first context fills.
    Context::of_tensors(ggml, 0)?;
    // SAFETY: the number is that of a type, and the table of types lives as long as the library.
    let traits = unsafe { (ggml.base.ggml_get_type_traits)(number).as_ref() };
    let traits = traits.ok_or_else(|| unsupported(format!("this build tells nothing of {ty}")))?;
    // What the build says by functions must stand in the struct too, else its layout is not the one that is known.
    if (usize::try_from(traits.blck_size), traits.type_size) != (Ok(ty.block_len()), ty.block_bytes()) {
        return Err(unsupported(format!("this build's table of types has a layout that is not known here ({ty})")));
    }
    let Some(to_float) = traits.to_float else {
        return Err(unsupported(format!("this build has no decoder of {ty}")));
    };
    let count = i64::try_from(out.len()).ok().filter(|_| {
        out.len().is_multiple_of(ty.block_len()) && blocks.len() == out.len() / ty.block_len() * ty.block_bytes()
    });
    let count = count.ok_or_else(|| DeviceError(format!("{} bytes are not {} of {ty}", blocks.len(), out.len())))?;
    // SAFETY: the routine reads so many elements in whole blocks, and the block's size is the build's own; it writes as
    // many numbers, for which there is room.
    unsafe { to_float(blocks.as_ptr().cast::<c_void>(), out.as_mut_ptr(), count) };
    Ok(())
}

/// The names of all types, in the order of their numbers.
fn names(ggml: &Ggml) -> impl Iterator<Item = String> {
    let name = |number: c_int| {
        // SAFETY: some builds do not check the number and read past the end of their table for the first one that is
        // no type: a few bytes further in the library's own constant data. What they return is looked at below.
        unsafe { (ggml.base.ggml_type_name)(number) }
    };
    let first = name(0);
    (0..MOST).map(name).map_while(move |n| if is_beside(first, n) { read(n) } else { None })
}

/// True if two addresses lie in the same loaded library, and so can be read from.
fn is_beside(a: *const c_char, b: *const c_char) -> bool {
    let library = |address: *const c_char| {
        let mut info: libc::Dl_info = libc::Dl_info {
            dli_fname: std::ptr::null(),
            dli_fbase: std::ptr::null_mut(),
            dli_sname: std::ptr::null(),
            dli_saddr: std::ptr::null_mut(),
        };
        // SAFETY: any address may be asked about, and the struct is only written to.
        let found = unsafe { libc::dladdr(address.cast::<c_void>(), &raw mut info) };
        (found != 0).then_some(info.dli_fbase)
    };
    library(a).is_some_and(|base| library(b) == Some(base))
}

/// A type's name; `None` for what does not look like one.
fn read(name: *const c_char) -> Option<String> {
    let mut text = String::new();
    for i in 0..LONGEST {
        // SAFETY: `name` lies in a loaded library, and each byte is read only if the one before it was no terminator.
        // A name lies among constants of the library, which are mapped beyond its end.
        let byte = unsafe { name.add(i).read() } as u8;
        match byte {
            0 => return (!text.is_empty() && text != "NONE").then_some(text),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => return None,
        }
    }
    None
}
