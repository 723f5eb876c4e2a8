"""Two results.jsonl must be equal after sorting by case and device and leaving out times."""

import json
import sys


def results(path):
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    for line in lines:
        del line["times"]
    return sorted(lines, key=lambda line: (line["case"], line["device"]))


a, b = (results(path) for path in sys.argv[1:3])
different = [(x, y) for x, y in zip(a, b) if x != y]
if len(a) != len(b) or different:
    sys.exit(f"{len(a)} and {len(b)} results, {len(different)} differ; first: {different[:1]}")
print(f"{len(a)} results, all equal")
