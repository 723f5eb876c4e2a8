#!/usr/bin/env bash
# Real ggml builds through the adapter: the newest and an old one, CPU variants and repacked weights.
# A device that is not there fails the run: it is asked for by name.
set -euo pipefail
cd "$(dirname "$0")/.."

newest=3.22.1 # v0.5.0
oldest=3.6.0  # b4753
ci/fetch-ggml.sh "$newest" "$oldest"
conform=${CARGO_TARGET_DIR:-target}/release/conform
builds=${CARGO_TARGET_DIR:-target}/ggml

echo '--- newest build: smoke on two CPU variants and repacked weights'
$conform run --ggml "$builds/v0.5.0" --timeout 10s --expect ci/expectations/ggml-cpu.toml \
    --device ggml-v0.5.0-cpu-x64 --device ggml-v0.5.0-cpu-haswell --device ggml-v0.5.0-cpu-haswell+repack

echo '--- oldest build: mul_mat_id'
$conform run mul_mat_id --ggml "$builds/b4753" --timeout 10s --expect ci/expectations/ggml-cpu.toml \
    --device ggml-b4753-cpu-haswell --device ggml-b4753-cpu-haswell+repack

echo '--- types that only a build decodes'
for build in v0.5.0 b4753; do
    $conform run --profile ggml-types --cases 300 --seed 5 --ggml "$builds/$build" --timeout 10s \
        --device "ggml-$build-cpu-haswell"
done

echo '--- state in the buffers of both builds'
$conform run --profile state --ggml "$builds/v0.5.0" --ggml "$builds/b4753" --timeout 10s \
    --device ggml-v0.5.0-cpu-haswell --device ggml-b4753-cpu-haswell

echo '--- a real libllama saves, loads and goes on; our own reader takes its blobs and writes them back'
$conform run --profile llama --ggml "$builds/v0.5.0" --ggml "$builds/b4753" --timeout 10s \
    --expect ci/expectations/llama.toml --device ggml-v0.5.0-cpu-haswell --device ggml-b4753-cpu-haswell
for kept in a=llama/do=fresh a=mamba/do=holes a=swa/do=many a=hybrid/do=partial a=llama,kt=f32,vt=f32/do=dirty; do
    $conform replay "llama_state/$kept/v1-1" --ggml "$builds/v0.5.0" --device ggml-v0.5.0-cpu-haswell --json |
        python3 -c 'import json, sys; checks = json.load(sys.stdin)[0]["checks"]
assert {"name": "blob", "status": "passed"} in checks, checks'
done

echo '--- an abort inside the library is a crash of that case alone'
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
bad='mul_mat_id/w=q4_0,x=f32,e=8,u=2,m=8,n=33,k=32/route=out,data=normal/v1-3'
good='mul_mat_id/w=q4_0,x=f32,e=8,u=1,m=8,n=1,k=32/route=shuffle,data=normal/v1-3'
code=0
$conform replay "$bad" "$good" --ggml "$builds/v0.5.0" --device ggml-v0.5.0-cpu-haswell+repack --json >"$out/replay" || code=$?
[ "$code" = 1 ] || { echo "replay ended with $code"; exit 1; }
grep -q '"verdict": "crash"' "$out/replay"
grep -q '"verdict": "pass"' "$out/replay"

echo '--- a broken build beside a good one'
mkdir "$out/broken"
head -c 1000 "$builds/v0.5.0/libggml-base.so" >"$out/broken/libggml-base.so"
code=0
$conform run 'argsort/c=1/' --ggml "$out/broken" --ggml "$builds/v0.5.0" --device ggml-v0.5.0-cpu-x64 || code=$?
[ "$code" = 2 ]
