//! The command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [command, backend] if command == "worker" => conform_harness::worker::serve(backend),
        _ => {
            eprintln!("usage: conform worker BACKEND");
            ExitCode::from(2)
        }
    }
}
