#!/usr/bin/env bash
# The conformance runs of every push.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --locked
conform=${CARGO_TARGET_DIR:-target}/release/conform
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

echo '--- no OpenCL at all: the embedded device alone'
OCL_ICD_VENDORS="$out/none" cargo run --release --locked -- run --out "$out/bare"
cases=$(grep -c '"device":"cpu"' "$out/bare/results.jsonl")
[ "$cases" -ge 1000 ] || { echo "only $cases cases on cpu"; exit 1; }
if grep -q '"device":"opencl' "$out/bare/results.jsonl"; then echo 'OpenCL was not hidden'; exit 1; fi

echo '--- every device here, and PoCL must be one'
$conform devices
$conform devices --json | grep -q '"key": "opencl-pocl-0"' || { echo 'PoCL is not found'; exit 1; }

echo '--- smoke on cpu and PoCL: under 90 s and 1.5 GiB'
python3 ci/bounded.py --seconds 90 --mib 1536 -- $conform run --device cpu --device 'opencl-pocl-*' --out "$out/smoke"

echo '--- the same seed gives the same results'
$conform run --device cpu --device 'opencl-pocl-*' --out "$out/again" >/dev/null
python3 ci/same_results.py "$out/smoke/results.jsonl" "$out/again/results.jsonl"

echo '--- state on cpu and PoCL: a thousand sequences of operations'
$conform run --profile state --device cpu --device 'opencl-pocl-*'

echo '--- smoke on rusticl, an OpenCL implementation that shares no code with PoCL'
RUSTICL_ENABLE=llvmpipe $conform run --device 'opencl-rusticl-*' --expect ci/expectations/rusticl.toml

echo '--- faults put into kernels are caught: a sample'
ci/mutants.sh

echo '--- a fresh seed'
$conform run --profile random --cases 500

echo '--- listing 20,000 ids takes less than a second'
python3 ci/bounded.py --seconds 1 --mib 256 -- $conform list --profile full > "$out/full"
[ "$(sort -u "$out/full" | wc -l)" -ge 20000 ]
