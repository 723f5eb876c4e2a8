#!/bin/sh
# Fetches prebuilt ggml builds from the npm registry: ci/fetch-ggml.sh VERSION..
#
# A version is one of the package @node-llama-cpp/linux-x64-vulkan, for example
# 3.22.1; the package says which release of llama.cpp it was built from. Its
# libraries are laid into target/ggml/RELEASE, which is kept and checked again
# the next time. The package with Vulkan holds the CPU variants of the one
# without, so one folder has every device of a build.
#
# Prints a line per build: its folder, release, and ggml's version and commit
# where the build tells. Fails if a build is not whole.
set -eu

package=@node-llama-cpp/linux-x64-vulkan
root=$(cd "$(dirname "$0")/.." && pwd)
store=${CARGO_TARGET_DIR:-$root/target}/ggml

die() {
    echo "fetch-ggml: $*" >&2
    exit 1
}

# The libraries without which a folder is no build.
whole() {
    for pattern in 'libggml-base.so' 'libggml.*so' 'libggml-cpu*.so' 'libggml-vulkan.so'; do
        set -- "$1" "$1"/$pattern
        [ -s "$2" ] || die "$1: no $pattern"
    done
    (cd "$1" && sha256sum --quiet --check SHA256SUMS) || die "$1: changed since it was fetched; remove it"
}

# The string that a function without arguments of the build returns; nothing where it has no such function.
ask() {
    python3 - "$1/libggml-base.so" "$2" <<'PYTHON' 2>/dev/null || true
import ctypes, sys
function = getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])
function.restype = ctypes.c_char_p
print(function().decode())
PYTHON
}

fetch() {
    work=$(mktemp -d "$store/.fetch-XXXXXX")
    trap 'rm -rf "$work"' EXIT
    (cd "$work" && npm pack --silent "$package@$1" >packed) || die "cannot fetch $package@$1 from the npm registry"
    tar -xzf "$work/$(tail -n 1 "$work/packed")" -C "$work" || die "$package@$1: not a package"
    files=$work/package/bins/linux-x64-vulkan
    release=$(sed -n 's/.*"release":"\([^"]*\)".*/\1/p' "$files/_nlcBuildMetadata.json")
    case $release in
        '' | .* | *[!A-Za-z0-9._-]*) die "$package@$1: does not say which release it is" ;;
    esac
    rm -rf "$work/build" "${store:?}/$release"
    mkdir "$work/build"
    # Only what is loaded: libraries, where they come from, and their licence.
    cp "$files"/lib*.so "$files/_nlcBuildMetadata.json" "$work/package/LICENSE" "$work/build"
    (cd "$work/build" && sha256sum lib*.so >SHA256SUMS)
    mv "$work/build" "$store/$release"
    echo "$release" >"$store/.npm-$1"
    rm -rf "$work"
    trap - EXIT
}

[ $# -gt 0 ] || die "which versions of $package? For example: ci/fetch-ggml.sh 3.22.1 3.6.0"
mkdir -p "$store"
for version in "$@"; do
    case $version in
        '' | *[!0-9.]*) die "'$version' is no version like 3.22.1" ;;
    esac
    if [ ! -s "$store/.npm-$version" ] || [ ! -d "$store/$(cat "$store/.npm-$version")" ]; then
        fetch "$version"
    fi
    release=$(cat "$store/.npm-$version")
    whole "$store/$release"
    told=$(ask "$store/$release" ggml_version)
    commit=$(ask "$store/$release" ggml_commit)
    echo "$store/$release: release $release, ggml version ${told:-not told}, commit ${commit:-not told}"
done
