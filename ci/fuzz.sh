#!/usr/bin/env bash
# Fuzzes the readers of foreign bytes, starting from the corpus: ci/fuzz.sh [ITERATIONS], a million of each by default.
# What a fuzzer finds on the way stays in harness/fuzz/corpus, what breaks a reader in harness/fuzz/artifacts: such an
# input belongs into golden/fuzz, which `cargo test` replays.
set -euo pipefail
cd "$(dirname "$0")/../harness"

iterations=${1:-1000000}
cargo fuzz --version >/dev/null 2>&1 || cargo install cargo-fuzz --locked
# The fuzzer's flags are those of a nightly compiler.
export RUSTC_BOOTSTRAP=1
for target in state_blob case_id results; do
    mkdir -p "fuzz/corpus/$target"
    echo "--- $target: $iterations iterations"
    cargo fuzz run --sanitizer none "$target" "fuzz/corpus/$target" "../golden/fuzz/$target" -- \
        -runs="$iterations" -max_len=4096 -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 2>&1 | tail -n 12
done
