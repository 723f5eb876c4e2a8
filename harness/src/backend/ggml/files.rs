//! The libraries of a build, found by what their file names have in common.
//!
//! Names differ by packager: `libggml.so`, `libggml.vulkan.b9842.so`,
//! `libggml-base.so.0.9.4`, `libggml-cpu-haswell.so`, `libggml-cpu-1a2b3c4d.so`
//! in a Python wheel, `ggml-base.dll`, `libggml-base.0.dylib`. What stays is
//! `ggml`, `ggml-base` and `ggml-BACKEND[-VARIANT]` up to the first dot.
//! Names of macOS and Windows are known here but were never tried there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::image;

/// A library that holds one backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// `cpu`, `vulkan`.
    pub(super) backend: String,
    /// Of the CPU backend: the processor it was compiled for.
    pub(super) variant: Option<String>,
    /// The file.
    pub(super) path: PathBuf,
}

/// What a build's folder holds, sorted.
#[derive(Debug)]
pub(super) struct Files {
    /// Tensors, graphs, and the interface of backends.
    pub(super) base: PathBuf,
    /// The registry of backends.
    pub(super) core: PathBuf,
    /// Backends, in the order of their names.
    pub(super) modules: Vec<Module>,
    /// llama.cpp's own library, where the build has it.
    pub(super) llama: Option<PathBuf>,
}

/// What one library is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Base,
    Core,
    Backend(String, Option<String>),
    Llama,
}

impl Files {
    /// Finds the libraries of a build and makes sure that each of them is whole and made for this machine.
    pub(super) fn find(dir: &Path) -> Result<Self, String> {
        let mut named: Vec<(Kind, PathBuf)> = Vec::new();
        // One library often has several names, links to each other or copies: the shortest one stands for it.
        let mut seen = BTreeSet::new();
        for path in list(dir)? {
            let file = file_name(&path);
            let Some(kind) = kind(&file) else { continue };
            image::check(&path).map_err(|why| format!("{}: {why}", path.display()))?;
            if seen.insert(without_version(&file).to_owned()) {
                named.push((kind, path));
            }
        }
        let one = |wanted: Kind, what: &str| {
            let mut of_kind = named.iter().filter(|(kind, _)| *kind == wanted).map(|(_, path)| path.clone());
            match (of_kind.next(), of_kind.next()) {
                (Some(path), None) => Ok(path),
                (None, _) => Err(format!("{}: holds no {what}; name the folder that has it", dir.display())),
                (Some(a), Some(b)) => Err(format!("{} and {}: which one is {what}?", a.display(), b.display())),
            }
        };
        let (base, core) = (one(Kind::Base, "libggml-base")?, one(Kind::Core, "libggml")?);
        let llama = named.iter().find(|(kind, _)| *kind == Kind::Llama).map(|(_, path)| path.clone());
        let modules = named.into_iter().filter_map(|(kind, path)| match kind {
            Kind::Backend(backend, variant) => Some(Module { backend, variant, path }),
            Kind::Base | Kind::Core | Kind::Llama => None,
        });
        let mut modules: Vec<Module> = modules.collect();
        modules.sort_by_key(|m| (m.backend.clone(), m.variant.clone()));
        Ok(Files { base, core, modules, llama })
    }
}

impl Module {
    /// The name of the file.
    pub(super) fn file(&self) -> String {
        file_name(&self.path)
    }
}

/// The last part of a path, for messages.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The files of a folder, shorter names first.
fn list(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(dir).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut paths: Vec<_> =
        entries.map_err(|e| format!("{}: {e}", dir.display()))?.into_iter().map(|e| e.path()).collect();
    paths.retain(|p| p.is_file() || p.is_symlink());
    paths.sort_by_key(|p| (p.as_os_str().len(), p.clone()));
    Ok(paths)
}

/// What a file name stands for; `None` if it is no library of ggml.
fn kind(file: &str) -> Option<Kind> {
    let is_library =
        file.ends_with(".so") || file.contains(".so.") || file.ends_with(".dylib") || file.ends_with(".dll");
    let name = file.strip_prefix("lib").unwrap_or(file).split('.').next().filter(|_| is_library)?;
    let parts: Vec<&str> = without_hash(name).split('-').collect();
    match parts[..] {
        ["llama"] => Some(Kind::Llama),
        ["ggml"] => Some(Kind::Core),
        ["ggml", "base"] => Some(Kind::Base),
        ["ggml", backend] => Some(Kind::Backend(backend.to_owned(), None)),
        ["ggml", backend, ref variant @ ..] => Some(Kind::Backend(backend.to_owned(), Some(variant.join("-")))),
        _ => None,
    }
}

/// A file name without the version that may stand behind `.so`, or before `.dylib`.
fn without_version(file: &str) -> &str {
    let end = match file.find(".so.") {
        Some(at) => at + ".so".len(),
        None if file.ends_with(".dylib") => file.find('.').unwrap_or(file.len()),
        None => file.len(),
    };
    &file[..end]
}

/// A name without the hash that tools which repair Python wheels put behind it.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((rest, hash)) if hash.len() == 8 && hash.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')) => rest,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(name: &str, variant: Option<&str>) -> Option<Kind> {
        Some(Kind::Backend(name.to_owned(), variant.map(str::to_owned)))
    }

    #[test]
    fn names_of_many_packagers() {
        for core in ["libggml.so", "libggml.b9842.so", "libggml.vulkan.v0.5.0.so", "libggml.so.0.9", "ggml.dll"] {
            assert_eq!(kind(core), Some(Kind::Core), "{core}");
        }
        for base in ["libggml-base.so", "libggml-base.so.0", "libggml-base.0.9.4.dylib", "libggml-base-00c0ffee.so.0"] {
            assert_eq!(kind(base), Some(Kind::Base), "{base}");
        }
        assert_eq!(kind("libggml-cpu.so"), backend("cpu", None));
        assert_eq!(kind("libggml-cpu-haswell.so"), backend("cpu", Some("haswell")));
        assert_eq!(kind("libggml-cpu-apple_m2_m3.dylib"), backend("cpu", Some("apple_m2_m3")));
        assert_eq!(kind("ggml-vulkan.dll"), backend("vulkan", None));
    }

    #[test]
    fn versions_are_other_names_of_one_library() {
        for (file, name) in [
            ("libggml-base.so", "libggml-base.so"),
            ("libggml-base.so.0", "libggml-base.so"),
            ("libggml-base.so.0.20.2", "libggml-base.so"),
            ("libggml.v0.5.0.so", "libggml.v0.5.0.so"),
            ("libggml-cpu.0.dylib", "libggml-cpu"),
            ("ggml.dll", "ggml.dll"),
        ] {
            assert_eq!(without_version(file), name);
        }
    }

    #[test]
    fn other_files_are_left_alone() {
        assert_eq!(kind("libllama.vulkan.v0.5.0.so"), Some(Kind::Llama));
        for other in [
            "libllama-common.so",
            "llama.h",
            "ggml.h",
            "libggml.a",
            "ggml-base.lib",
            "libggmlish.so",
            "_nlcBuildMetadata.json",
        ] {
            assert_eq!(kind(other), None, "{other}");
        }
    }
}
