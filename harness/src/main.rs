//! The `conform` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    conform_harness::cli::main()
}
