#!/usr/bin/env python3
"""Runs every libFuzzer target for a while and prints how many inputs each has tried.

  cmake --preset fuzz && ninja -C build-fuzz
  tests/fuzz/soak.py --build build-fuzz --minutes 60 --jobs 2 [TARGET ...]

A target's new inputs stay in the build folder for the next run. The exit code is 1 when a target finds a
failure: the failing input lies beside the new inputs, and the target's log tells how it ended.
"""
import argparse
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import time


def fuzz(target: pathlib.Path, seconds: int, build: pathlib.Path) -> dict:
    corpus = pathlib.Path(__file__).parent / "corpus" / target.name
    found = build / "tests" / "fuzz" / "found" / target.name
    found.mkdir(parents=True, exist_ok=True)
    log = build / "tests" / "fuzz" / f"{target.name}.log"
    began = time.monotonic()
    with log.open("w") as out:
        code = subprocess.run(
            [str(target), f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=3072",
             "-print_final_stats=1", f"-artifact_prefix={found}/", str(found), str(corpus)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    text = log.read_text(errors="replace")
    inputs = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    return {"target": target.name, "inputs": int(inputs.group(1)) if inputs else 0, "code": code,
            "seconds": time.monotonic() - began, "log": log}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build-fuzz"))
    parser.add_argument("--minutes", type=float, required=True, help="of all targets together")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("targets", nargs="*", help="all of them if none is named")
    args = parser.parse_args()
    tests = args.build.resolve() / "tests"
    targets = sorted(path for path in tests.glob("*_fuzz")
                     if not args.targets or path.name in args.targets)
    unknown = set(args.targets) - {path.name for path in targets}
    if unknown or not targets:
        parser.error(f"no such target in {tests}: {', '.join(sorted(unknown)) or 'none built'}")
    seconds = max(1, int(args.minutes * 60 * args.jobs / len(targets)))
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda target: fuzz(target, seconds, args.build.resolve()), targets))
    print(f"{'target':24} {'inputs':>12} {'a second':>9}")
    for result in results:
        print(f"{result['target']:24} {result['inputs']:12,} {result['inputs'] / result['seconds']:9,.0f}"
              + (f"  FOUND SOMETHING, see {result['log']}" if result["code"] else ""))
    print(f"{'together':24} {sum(result['inputs'] for result in results):12,}")
    return 1 if any(result["code"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
