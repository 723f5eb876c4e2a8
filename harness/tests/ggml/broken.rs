//! Folders that are no build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

fn conform(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_conform")).args(args).output().unwrap()
}

/// A folder with these files.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// Runs `devices` on the folder, which must be refused with exit code 2 and one line; returns that line.
fn refusal(dir: &Path) -> String {
    let output = conform(&["devices", "--ggml", &format!("broken={}", dir.display())]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors.lines().count(), 1, "{errors}");
    // The embedded device is there all the same.
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("cpu "));
    errors
}

/// A real shared library of this machine that is not ggml's.
fn some_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.split_whitespace().find(|word| word.contains("/libc.so") || word.contains("/libc-"));
    PathBuf::from(path.expect("the test is linked to a C library"))
}

#[test]
fn an_empty_or_absent_folder() {
    assert!(refusal(folder(&[]).path()).contains("holds no libggml-base"));
    assert!(refusal(Path::new("/nowhere")).contains("/nowhere: No such file"));
    let library = fs::read(some_library()).unwrap();
    assert!(refusal(folder(&[("libggml-base.so", &library)]).path()).contains("holds no libggml;"));
}

#[test]
fn a_text_file() {
    let why = refusal(folder(&[("libggml.so", b"INPUT(libggml.so.0)\n")]).path());
    assert!(why.contains("libggml.so: is no shared library (20 bytes"), "{why}");
    assert!(refusal(folder(&[("libggml.so", b"")]).path()).contains("is no shared library (0 bytes"));
}

#[test]
fn a_truncated_library() {
    let library = fs::read(some_library()).unwrap();
    // Cut in a header, in a table, in a segment, and in the last section.
    for len in [65, 100, library.len() / 2, library.len() - 1] {
        let why = refusal(folder(&[("libggml-cpu-x64.so", &library[..len])]).path());
        assert!(why.contains(&format!("libggml-cpu-x64.so: is truncated: {len} bytes of ")), "{why}");
    }
}

#[test]
fn a_foreign_library() {
    let mut library = fs::read(some_library()).unwrap();
    let host = library[18];
    library[18] = if host == 62 { 183 } else { 62 };
    assert!(refusal(folder(&[("libggml-base.so", &library)]).path()).contains("libggml-base.so: is a library for "));
    library[18] = 200;
    assert!(refusal(folder(&[("libggml-base.so", &library)]).path()).contains("for ELF machine 200, this program"));
    library[18] = host;
    library[4] = 1;
    assert!(refusal(folder(&[("libggml-base.so", &library)]).path()).contains("for another kind of machine"));
    library[4] = 2;
    library[16] = 2;
    assert!(refusal(folder(&[("libggml-base.so", &library)]).path()).contains("but no shared library"));
}

#[test]
fn a_library_without_ggml_in_it() {
    let library = fs::read(some_library()).unwrap();
    let why = refusal(folder(&[("libggml-base.so", &library), ("libggml.so", &[&library[..], b" "].concat())]).path());
    assert!(why.contains("libggml-base.so: has no function ggml_log_set; builds from b4753"), "{why}");
}

#[test]
fn two_libraries_of_one_kind() {
    let library = fs::read(some_library()).unwrap();
    let why = refusal(folder(&[("libggml-base.so", &library), ("libggml-base.0.dylib", &library)]).path());
    assert!(why.contains("which one is libggml-base?"), "{why}");
}

#[test]
fn the_rest_is_run_and_the_exit_code_tells() {
    let bad = folder(&[("libggml.so", b"no")]);
    let bad = bad.path().to_str().unwrap();
    let case = "argsort/c=3/data=ties/v1-1";
    let filter = "argsort/c=1";
    let output = conform(&["run", filter, "--device", "cpu", "--ggml", bad]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains(", 0 unexpected results"));
    assert_eq!(conform(&["run", filter, "--device", "cpu"]).status.code(), Some(0));
    assert_eq!(conform(&["replay", case, "--device", "cpu", "--ggml", bad]).status.code(), Some(125));
    assert_eq!(conform(&["replay", case, "--device", "ggml-*", "--ggml", bad]).status.code(), Some(125));
    assert_eq!(conform(&["replay", case, "--device", "cpu"]).status.code(), Some(0));
}

#[test]
fn names_must_differ() {
    let output = conform(&["devices", "--ggml", "a=/x", "--ggml", "a=/y"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("/x and /y are both called 'a'; write --ggml OTHERNAME=/y"), "{errors}");
    assert_eq!(conform(&["devices", "--ggml", "a b=/x"]).status.code(), Some(2));
    assert_eq!(
        conform(&["replay", "argsort/c=3/data=ties/v1-1", "--device", "cpu", "--ggml", ""]).status.code(),
        Some(129)
    );
}
