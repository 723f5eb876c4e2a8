"""Runs a command within a limit of wall time and of memory, summed over its process tree.

Memory is proportional set size: pages shared by several processes count once.
"""

import argparse
import os
import subprocess
import sys
import time


def tree(root):
    """Process numbers of root and all its descendants."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as stat:
                    parent = int(stat.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def memory_mib(root):
    total = 0
    for pid in tree(root):
        try:
            with open(f"/proc/{pid}/smaps_rollup") as maps:
                total += sum(int(line.split()[1]) for line in maps if line.startswith("Pss:"))
        except OSError:
            continue
    return total / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--mib", type=float, required=True)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    start = time.monotonic()
    child = subprocess.Popen(args.command)
    peak = 0.0
    while child.poll() is None:
        peak = max(peak, memory_mib(child.pid))
        if time.monotonic() - start > args.seconds * 3:
            child.kill()
        time.sleep(0.05)
    seconds = time.monotonic() - start
    print(f"{seconds:.2f} s of {args.seconds:g}, peak {peak:.0f} MiB of {args.mib:g}", file=sys.stderr)
    if child.returncode:
        sys.exit(child.returncode)
    if seconds > args.seconds or peak > args.mib:
        sys.exit("over the limit")


main()
