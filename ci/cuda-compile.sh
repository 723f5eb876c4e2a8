#!/usr/bin/env bash
# Compiles every CUDA kernel for the architectures that are promised. That needs no GPU: the compiler is a library, and
# it comes from PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."

package=nvidia-cuda-nvrtc-cu12==12.9.86
store=${CARGO_TARGET_DIR:-target}/nvrtc
library=$store/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
if [ ! -s "$library" ]; then
    if ! python3 -m pip --version >/dev/null 2>&1; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-pip >/dev/null
    fi
    mkdir -p "$store"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$store" "$package"
    python3 -m zipfile -e "$store"/nvidia_cuda_nvrtc_cu12-*.whl "$store"
fi
CONFORM_NVRTC=$(realpath "$library") cargo test --locked -p conform-harness --test cuda compile::
