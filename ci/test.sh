#!/usr/bin/env bash
# The README's test command, on a machine where the devices named here must exist.
set -euo pipefail
cd "$(dirname "$0")/.."

export CONFORM_REQUIRE=cpu,opencl-pocl
cargo test --workspace --locked
if cargo nextest --version >/dev/null 2>&1; then
    # A process a trial: nothing may depend on what trials of one process share.
    cargo nextest run --locked -p conform-harness --test conformance -E 'test(mul_mat_id/f16) | test(argsort/asc)'
fi
