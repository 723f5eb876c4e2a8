//! Is a file a whole shared library for this machine? The dynamic loader trusts what it maps: a library that lost its
//! tail is a bus error at the first page that is not there, so it is looked at before.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes of the header of a 64-bit ELF file, of one entry of its program header table, and of its section table.
const HEADER: usize = 64;
const SEGMENT: usize = 56;
const SECTION: u64 = 64;

/// A shared object.
const ET_DYN: u16 = 3;
/// A segment that is mapped.
const PT_LOAD: u32 = 1;

/// Checks a library; an error says what is wrong with it. Only ELF is looked into: other systems' loaders must do.
pub(super) fn check(path: &Path) -> Result<(), String> {
    let mut file = File::open(path).map_err(|e| e.to_string())?;
    if !cfg!(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")) {
        return Ok(());
    }
    let len = file.metadata().map_err(|e| e.to_string())?.len();
    let header: [u8; HEADER] = read(&mut file, 0)?.unwrap_or([0; HEADER]);
    if !header.starts_with(b"\x7fELF") {
        return Err(format!("is no shared library ({len} bytes, no ELF header)"));
    }
    // Class 2 is 64 bits, data 1 is little-endian.
    if header[4..6] != [2, 1] {
        return Err("is a library for another kind of machine (not 64-bit little-endian)".to_owned());
    }
    let machine = u16_at(&header, 18);
    if host_machine().is_some_and(|host| host != machine) {
        let (this, that) = (std::env::consts::ARCH, machine_name(machine));
        return Err(format!("is a library for {that}, this program runs on {this}"));
    }
    if u16_at(&header, 16) != ET_DYN {
        return Err("is an ELF file, but no shared library".to_owned());
    }
    let mut end = u64_at(&header, 40).saturating_add(u64::from(u16_at(&header, 60)) * SECTION);
    let table = u64_at(&header, 32);
    for i in 0..u64::from(u16_at(&header, 56)) {
        let at = table.saturating_add(i * SEGMENT as u64);
        let Some(segment) = read::<SEGMENT>(&mut file, at)? else {
            end = end.max(at.saturating_add(SEGMENT as u64));
            break;
        };
        if u32_at(&segment, 0) == PT_LOAD {
            end = end.max(u64_at(&segment, 8).saturating_add(u64_at(&segment, 32)));
        }
    }
    if end > len {
        return Err(format!("is truncated: {len} bytes of {end} or more"));
    }
    Ok(())
}

/// Bytes at an offset, or `None` where the file ends before.
fn read<const N: usize>(file: &mut File, at: u64) -> Result<Option<[u8; N]>, String> {
    let mut bytes = [0; N];
    match file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut bytes)) {
        Ok(()) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e.to_string()),
    }
}

/// The ELF number of this machine's architecture, where it is known here.
fn host_machine() -> Option<u16> {
    MACHINES.iter().find(|(_, name)| *name == std::env::consts::ARCH).map(|(number, _)| *number)
}

fn machine_name(number: u16) -> String {
    let known = MACHINES.iter().find(|(n, _)| *n == number).map(|(_, name)| (*name).to_owned());
    known.unwrap_or_else(|| format!("ELF machine {number}"))
}

/// ELF numbers of architectures, by the names that Rust gives them.
const MACHINES: [(u16, &str); 7] =
    [(3, "x86"), (21, "powerpc64"), (22, "s390x"), (40, "arm"), (62, "x86_64"), (183, "aarch64"), (243, "riscv64")];

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
