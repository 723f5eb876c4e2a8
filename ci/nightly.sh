#!/usr/bin/env bash
# What is too long for every push, from a bare machine with Rust: ci/nightly.sh OUT. Every CPU variant of the newest
# ggml build that this processor can run takes the full profile, Vulkan what lavapipe can, and our own kernels drawn
# cases under a fresh seed, those with f16 and sub-groups on Intel's runtime. OUT gets a folder for each run. All of them
# run, whatever an earlier one finds.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:?"where to? ci/nightly.sh OUT"}
newest=3.22.1 # v0.5.0
ci/install-opencl.sh
ci/install-intel-opencl.sh
ci/fetch-ggml.sh "$newest"
cargo build --release --locked
conform=${CARGO_TARGET_DIR:-target}/release/conform
build=${CARGO_TARGET_DIR:-target}/ggml/v0.5.0
intel=$(realpath "${CARGO_TARGET_DIR:-target}/intel-opencl/vendors")
mkdir -p "$out"

failed=()
part() {
    echo "--- $1"
    "${@:2}" || failed+=("$1")
}

part 'every fault put into kernels is caught' ci/mutants.sh "$out/mutants.json"
part 'readers of foreign bytes, a million inputs each' ci/fuzz.sh
part 'full profile on CPU variants' $conform run --profile full --ggml "$build" --device 'ggml-v0.5.0-cpu-*' \
    --timeout 10s --expect ci/expectations/ggml-cpu.toml --out "$out/ggml-cpu"
part 'libllama on CPU variants' $conform run --profile llama --ggml "$build" --device 'ggml-v0.5.0-cpu-*[!k]' \
    --timeout 10s --expect ci/expectations/llama.toml --out "$out/llama"
part 'five runs of each case give the same bits' $conform run --profile smoke --repeat 5 --device cpu \
    --device 'opencl-pocl-*' --out "$out/repeat"
part 'smoke on lavapipe' ci/lavapipe.sh --out "$out/ggml-vulkan"
part 'a fresh seed on rusticl and PoCL' env RUSTICL_ENABLE=llvmpipe $conform run --profile random \
    --time "${NIGHTLY_TIME:-30m}" --device cpu --device 'opencl-rusticl-*' --device 'opencl-pocl-*' \
    --expect ci/expectations/rusticl.toml --out "$out/opencl"
part "kernels on Intel's OpenCL" env OCL_ICD_VENDORS="$intel" CONFORM_REQUIRE=opencl-intel \
    cargo test --release --locked -p conform-harness --test opencl_kernels
part "a fresh seed on Intel's OpenCL, in f32 and in f16" env OCL_ICD_VENDORS="$intel" $conform run --profile random \
    --time "${NIGHTLY_TIME:-30m}" --device opencl-intel-0 --device opencl-intel-0+f16 --out "$out/opencl-intel"

[ ${#failed[@]} = 0 ] || { printf 'unexpected results: %s\n' "${failed[@]}"; exit 1; }
