//! ggml's numbers of element types, found by their names.

// Reads names that the library hands out.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};

use conform_cases::formats::ElemType;

use super::library::Ggml;

/// More types than ggml has ever had.
const MOST: c_int = 128;

/// No name is longer: those of types that were removed are sentences.
const LONGEST: usize = 128;

/// The number of a type in this build. The error says what the build has instead.
pub(super) fn number(ggml: &Ggml, ty: ElemType) -> Result<c_int, String> {
    let name = ty.name();
    let number = names(ggml).position(|n| n.eq_ignore_ascii_case(name)).and_then(|n| c_int::try_from(n).ok());
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
