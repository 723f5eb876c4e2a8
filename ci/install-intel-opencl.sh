#!/usr/bin/env bash
# Fetches Intel's OpenCL runtime for CPUs from PyPI: the one implementation that needs no special hardware and has
# fp16 and sub-groups. It works on any x86-64 and is laid into target/intel-opencl (700 MB), which is kept: lib/
# with the libraries, vendors/ for the loader, selected by
#
#     OCL_ICD_VENDORS=$PWD/target/intel-opencl/vendors conform devices
#
# Nothing is installed into the system but pip and unzip where they are missing.
set -euo pipefail
cd "$(dirname "$0")/.."

home=$(realpath -m "${CARGO_TARGET_DIR:-target}/intel-opencl")
wheels='intel-opencl-rt==2026.2.0 --hash=sha256:6b6215a420598b4999ee01caca6d5cbe106aa4155c46c52377619c5aafce9f67
intel-cmplr-lib-rt==2026.2.0 --hash=sha256:9f713083073a820d2496a6da8e8d4f3482aba6640f74521d25ea48dcebe72748
tbb==2023.2.0 --hash=sha256:7d80615b6e970f11671fa05b6eaa9483ac864fbfe525ac280271a78b37870b7c'

if [ "$(cat "$home/wheels" 2>/dev/null)" = "$wheels" ]; then
    echo "$home: Intel's OpenCL runtime is there already"
else
    if ! python3 -m pip --version >/dev/null 2>&1 || ! command -v unzip >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends python3-pip unzip >/dev/null
    fi
    rm -rf "$home"
    mkdir -p "$home/download" "$home/lib"
    echo "$wheels" >"$home/download/requirements.txt"
    # The wheels are for any Python 3, so pip asks for one whatever this machine's own libraries are.
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --platform manylinux_2_28_x86_64 --dest "$home/download" --requirement "$home/download/requirements.txt"
    for wheel in "$home"/download/*.whl; do
        unzip -qoj "$wheel" '*.data/data/lib/*' -d "$home/lib"
    done
    # Its own loader would hide the system's, and the other is a compiler's.
    rm -r "$home/download" "$home"/lib/libOpenCL.so* "$home/lib/icx-lto.so"
    echo "$wheels" >"$home/wheels"
    echo "$home: fetched Intel's OpenCL runtime from PyPI"
fi

# The loader wants a whole path, which a moved folder changes.
mkdir -p "$home/vendors"
echo "$home/lib/libintelocl.so" >"$home/vendors/intel-cpu.icd"
echo "$home/vendors: OCL_ICD_VENDORS for it"
