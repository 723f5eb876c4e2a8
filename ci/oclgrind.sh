#!/usr/bin/env bash
# Our OpenCL kernels under Oclgrind, an interpreter that watches each access: out of bounds by a byte, values that nobody
# wrote, data races, barriers that part of a work-group does not reach. A complaint fails the case (check `accesses`).
# Every kernel of OpenCL 1.2 runs, in tiny shapes: an interpreter takes a second for what a GPU does in microseconds.
#
# Four mutants show that each kind of complaint can come. On PoCL no result tells of them, which is shown as well.
set -euo pipefail
cd "$(dirname "$0")/.."

conform=${CARGO_TARGET_DIR:-target}/release/conform
driver=/usr/lib/oclgrind/liboclgrind-rt-icd.so
[ -e "$driver" ] || { echo "there is no $driver: ci/install-opencl.sh installs Oclgrind"; exit 1; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# The loader takes the driver itself for a list of drivers.
under_oclgrind() { env OCL_ICD_VENDORS="$driver" "$@"; }

# `replay` is 0 only for a case that was judged and passed.
replay() {
    local log
    if log=$(under_oclgrind "${@:2}" "$conform" replay "$1" --device opencl-oclgrind-0 2>&1); then
        echo "clean  $1"
    else
        printf 'NOT CLEAN (%s)\n%s\n' "$?" "$log"
        return 1
    fi
}
export -f replay under_oclgrind
export conform driver

m=mul_mat_id mx=w=mxfp4,x=f32 drawn=route=shuffle,data=normal
cases=(
    # Tiles of many tokens (convert, route, reorder, gemm, restore); gemv; both in one sequence.
    $m/$mx,e=3,u=2,m=66,n=3,k=32/$drawn/v1-1
    $m/$mx,e=3,u=2,m=5,n=5,k=64/$drawn/v1-1
    $m/$mx,e=2,u=2,m=3,n=20,k=32/route=out,data=narrow/v1-1
    $m/$mx,e=3,u=2,m=17,n=1,k=64/$drawn/v1-1
    $m/$mx,e=3,u=3,m=5,n=1,k=96,b=3,t=4,wv=me,xv=b,iv=u/route=repeat,data=narrow/v1-1
    $m/$mx,e=3,u=2,m=3,n=3,k=32/$drawn,seq={back,ids,grow,layers,beside}/v1-1
    # Every decoder of expert.cl.
    $m/w={f32,f16,bf16},x=f32,e=3,u=2,m=5,n=2,k=7/$drawn/v1-1
    $m/w={q4_0,q4_1,q5_0,q5_1,q8_0},x=f32,e=3,u=2,m=3,n=2,k=32/$drawn/v1-1
    $m/w={q4_K,q6_K},x=f32,e=2,u=1,m=2,n=2,k=256/$drawn/v1-1
    argsort/c=5,r=7/data=ties/v1-1
    argsort/c=33,r=2,r2=2,o=desc,v=cr/data=nan/v1-1
    argsort/c=300,v=c/data=uniform/v1-1
    top_k/c=33,r=3,k=5/data=ties/v1-1
    top_k/c=300,k=7,v=c/data=inf/v1-1
    # Layers, whose slots are sorted once for three matmuls.
    moe_layer/$mx,e=4,u=2,h=32,f=32,n=2/route=uniform,data=normal/v1-1
    moe_layer/$mx,e=4,u=2,h=32,f=32,n=1,by=top_k/route=uniform,data=normal/v1-1
)
# Rows that don't fit into local memory, so little that short ones don't.
long=(argsort/c=300,r=2/data=ties/v1-1 argsort/c=600,o=desc/data=uniform/v1-1)
# The kernels that move pieces. Oclgrind 21.10 forgets which bytes of an allocation are written when the host writes a
# part of it, as it does with tables of pieces: here it is not asked for unwritten values.
moved=(kv_state/c=16,l=2,k=32,v=32/n=12/v1-1 kv_state/c=16,l=2,k=33,v=31,t=1/n=12/v1-1)

{
    printf '%s\n' "${cases[@]}"
    printf '%s OCLGRIND_LOCAL_MEM_SIZE=4096\n' "${long[@]}"
    printf '%s OCLGRIND_UNINITIALIZED=0\n' "${moved[@]}"
} | xargs -P "$(nproc)" -d '\n' -I{} bash -c 'replay $1' - {}

echo '--- faults that only Oclgrind sees'
under_oclgrind "$conform" mutants 'u[0-9]*' --device opencl-oclgrind-0 --json >"$out/seen" 2>"$out/notes" ||
    { cat "$out/notes" "$out/seen"; exit 1; }
mapfile -t mutants < <(grep -oP '"mutant": "\K[^"]+' "$out/seen")

echo '--- each of the four kinds of complaint, alone'
told() {
    local words=$1 mutant=$2 failure
    failure=$(under_oclgrind "${@:3}" "$conform" mutants "$mutant" --device opencl-oclgrind-0 --json 2>/dev/null |
        grep '"failure"' || true)
    echo "$mutant $failure"
    [[ $failure == *"$words"* ]] || { echo "$mutant should be told as '$words'"; exit 1; }
}
told 'Invalid read' u1-reads-behind OCLGRIND_UNINITIALIZED=0 OCLGRIND_DATA_RACES=0
told 'ninitialized value' u2-unwritten-keys OCLGRIND_DATA_RACES=0
told 'data race' u3-race-in-order OCLGRIND_UNINITIALIZED=0
told 'divergence' u4-barrier-for-some OCLGRIND_UNINITIALIZED=0 OCLGRIND_DATA_RACES=0

echo '--- the same faults on PoCL: no case tells'
code=0
"$conform" mutants "${mutants[@]}" --device opencl-pocl-0 --cases 200 >"$out/unseen" 2>"$out/notes" || code=$?
cat "$out/unseen"
missed=$(grep -c '^  200 cases tell no difference$' "$out/unseen" || true)
[ "$code" = 1 ] && [ "$missed" = ${#mutants[@]} ] || { cat "$out/notes"; echo 'not what was expected'; exit 1; }
