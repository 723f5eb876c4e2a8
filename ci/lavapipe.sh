#!/usr/bin/env bash
# ggml's Vulkan backend on lavapipe, Mesa's software Vulkan: the smoke profile of the newest build, as far as a
# processor can take it. Arguments are added to the run, for example --out DIR.
#
# Nearly all time goes into compiling shaders, up to 20 s for a tile of one weight type. They are kept in target/mesa,
# so that a second run takes a fraction of the time. A small timeout would call a compilation a hang. A worker does five
# cases: Mesa 22.3's lavapipe uses freed memory, and of workers without a limit four times as many died on the way.
set -euo pipefail
cd "$(dirname "$0")/.."

newest=3.22.1 # v0.5.0
ci/install-vulkan.sh
ci/fetch-ggml.sh "$newest"
conform=${CARGO_TARGET_DIR:-target}/release/conform
target=${CARGO_TARGET_DIR:-$PWD/target}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Without this ggml leaves software drivers out.
export GGML_VK_VISIBLE_DEVICES=0
export MESA_SHADER_CACHE_DIR=${MESA_SHADER_CACHE_DIR:-$target/mesa}
mkdir -p "$MESA_SHADER_CACHE_DIR"

# What is left out: a sort of 2^20 columns, or 65,537 tokens, take minutes here, so does the compilation of one shader
# that looks codes up in tables, and one case of a view, whose outcome would be reported only, never ends.
tables='w=iq[123]_'
endless='w=q4_K,.*n=9,k=4096,xv=kn'
large='[,/](c|r|r2|r3|e|m|n|k)=[0-9]{5,}'
$conform list --profile corpus | grep -v '^llama_state/' >"$out/corpus"
$conform list | grep -vxFf "$out/corpus" | grep -vE "$endless" >"$out/smoke"
grep -vE "$tables" "$out/smoke" >"$out/decoded"
grep -vE "$large" "$out/decoded" >"$out/rest"
mapfile -t cases < <(cat "$out/corpus" "$out/rest")
echo "left out: $(grep -cE "$tables" "$out/smoke") cases of iq1, iq2 and iq3 weights, and" \
    "$(grep -cE "$large" "$out/decoded") with a dimension above 9,999; ${#cases[@]} are run"

$conform run "${cases[@]}" --ggml "$target/ggml/v0.5.0" --device ggml-v0.5.0-vulkan-0 --timeout 3m --worker-cases 5 \
    --expect ci/expectations/ggml-vulkan.toml "$@"

# No shader takes part in these.
$conform run --profile state --ggml "$target/ggml/v0.5.0" --device ggml-v0.5.0-vulkan-0 --timeout 1m
