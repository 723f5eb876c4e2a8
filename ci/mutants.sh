#!/usr/bin/env bash
# What the cases catch: faults put into our own kernels, into the embedded device, the engine of state and the rules that
# tell devices apart, of which every one must be told by a case that passes without it. Without an argument a sample of
# kernels and all of the rest, a minute at most; `ci/mutants.sh FILE` hunts all of them and leaves the table there, as JSON.
set -euo pipefail
cd "$(dirname "$0")/.."

conform=${CARGO_TARGET_DIR:-target}/release/conform
devices=(--device cpu --device 'opencl-pocl-*')

if [ $# = 0 ]; then
    # Routing and its reuse, conversion, products and sorts; barriers, edges, views, special values, and a bound that zeros must not pass.
    sample=(m1- m2- m3- m5- m7- m8- m9- m10-ties a4- a29- b15- b25- zeros-f32 'state-*' 'identity-*')
    exec python3 ci/bounded.py --seconds 60 --mib 1536 -- "$conform" mutants "${devices[@]}" "${sample[@]}"
fi

code=0
"$conform" mutants "${devices[@]}" --json >"$1" || code=$?
python3 - "$1" <<'PYTHON'
import json, sys
table = json.load(open(sys.argv[1]))
for m in table["mutants"]:
    habit = "-" if m["habit"] is None else next(iter(m["habit"]))
    print(f"{m['mutant']:<24}{m['device']:<16}{m['check'] or 'NOT CAUGHT':<12}{m['cases']:>6}{m['seconds']:>8.2f}  {habit:<8}{m['bug']}")
s = table["summary"]
print(s)
hunted = s["hunt_seconds"] / s["jobs"]
if s["median_cases"] >= 100 or hunted >= 360:
    sys.exit(f"the median is {s['median_cases']} cases (under 100 wanted), hunting took {hunted:.0f} s (under 360 wanted)")
PYTHON
exit $code
