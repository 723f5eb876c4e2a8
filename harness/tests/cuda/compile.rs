//! Every kernel compiles for every architecture that is promised, with the sources and options of the backend.
//!
//! This needs NVRTC and no GPU. Without it the test prints why and passes, unless `CONFORM_NVRTC` names a library or
//! `CONFORM_REQUIRE` a CUDA device.

use std::collections::BTreeMap;

use conform_harness::backend::cuda::{Nvrtc, SOURCES, Source, Target, compile_all, edited};
use conform_harness::mutants::{Fault, table};

/// Turing, Ampere, Hopper.
const ARCHITECTURES: [u32; 3] = [75, 80, 90];

fn nvrtc() -> Option<Nvrtc> {
    Nvrtc::open(None)
        .map_err(|why| {
            let is_required = std::env::var_os("CONFORM_NVRTC").is_some() || crate::is_required();
            assert!(!is_required, "NVRTC is required: {why}");
            println!("{why}");
        })
        .ok()
}

#[test]
fn every_kernel_compiles() {
    let Some(nvrtc) = nvrtc() else { return };
    for arch in ARCHITECTURES {
        for is_binary in [false, true] {
            let compiled = compile_all(&nvrtc, Target { arch, is_binary }, &SOURCES).unwrap();
            assert_eq!(compiled.len(), SOURCES.iter().filter(|s| s.name.ends_with(".cu")).count());
            for (name, image) in compiled {
                // Assembly says what it is for, and machine code is an ELF file.
                let good = match is_binary {
                    false => String::from_utf8_lossy(&image).contains(&format!(".target sm_{arch}")),
                    true => image.starts_with(b"\x7fELF"),
                };
                assert!(good, "{name} for {arch}");
            }
        }
    }
}

#[test]
fn chips_get_what_the_compiler_has_for_them() {
    let Some(nvrtc) = nvrtc() else { return };
    assert_eq!(nvrtc.target(90), Ok(Target { arch: 90, is_binary: true }));
    // A chip of the future takes assembly of the newest that is known.
    let future = nvrtc.target(9990).unwrap();
    assert!(!future.is_binary && future.arch >= 90);
    assert!(nvrtc.target(10).unwrap_err().contains("does not compile for compute capability 1.0"));
}

#[test]
fn an_error_in_a_kernel_is_one_line() {
    let Some(nvrtc) = nvrtc() else { return };
    let mut sources = SOURCES.to_vec();
    let gemm = sources.iter_mut().find(|s| s.name == "gemm.cu").unwrap();
    gemm.text = gemm.text.replace("float sum[SHARE]", "flaot sum[SHARE]").into();
    let why = compile_all(&nvrtc, Target { arch: 80, is_binary: true }, &sources).unwrap_err();
    assert!(why.starts_with("gemm.cu: nvrtcCompileProgram: NVRTC_ERROR_COMPILATION: gemm.cu("), "{why}");
    assert!(why.contains("flaot") && !why.contains('\n'), "{why}");
}

/// The kernel files that a change reaches, with all headers.
fn reached(sources: &[Source]) -> Vec<Source> {
    let changed = |s: &Source| SOURCES.iter().any(|o| o.name == s.name && o.text != s.text);
    let headers: Vec<&str> =
        sources.iter().filter(|s| s.name.ends_with(".cuh") && changed(s)).map(|s| s.name).collect();
    let includes = |s: &Source| headers.iter().any(|h| s.text.contains(&format!("#include \"{h}\"")));
    sources.iter().filter(|s| s.name.ends_with(".cuh") || changed(s) || includes(s)).cloned().collect()
}

/// A mutant that does not compile, or to the same code, is none.
#[test]
fn every_mutant_compiles_to_other_code() {
    let Some(nvrtc) = nvrtc() else { return };
    // The first chips for which every kernel has code.
    let target = Target { arch: 80, is_binary: false };
    let healthy: BTreeMap<_, _> = compile_all(&nvrtc, target, &SOURCES).unwrap().into_iter().collect();
    for mutant in table::all() {
        let Fault::Kernels(edits) = mutant.fault else { continue };
        if edits.cuda.is_empty() {
            continue;
        }
        let sources = reached(&edited(edits.cuda).unwrap());
        let compiled = compile_all(&nvrtc, target, &sources).unwrap_or_else(|why| panic!("{}: {why}", mutant.id));
        for (file, image) in compiled {
            assert!(String::from_utf8_lossy(&image).contains(".target sm_80"), "{}: {file}", mutant.id);
            assert_ne!(image, healthy[file], "{}: {file} is compiled to the same code", mutant.id);
        }
    }
}
