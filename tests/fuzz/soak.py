#!/usr/bin/env python3
"""Runs every fuzz target for a while and prints how many inputs each has tried, and its slowest input.

  cmake --preset fuzz && ninja -C build-fuzz
  tests/fuzz/soak.py --build build-fuzz --minutes 60 --jobs 2 [TARGET ...]
  tests/fuzz/soak.py --build build --minutes 60 --seed 7        # without libFuzzer: seeded mutations

With libFuzzer a target's new inputs stay in the build folder for the next run, and its slowest input is known in
whole seconds. Each input has a bound: 20 s of time and 3 GiB of memory (5 s and 2 GiB without libFuzzer). The exit
code is 1 when a target finds a failure: its log tells how it ended, and with which input.
"""
import argparse
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import time


def libfuzzer(target: pathlib.Path, seconds: int, found: pathlib.Path, corpus: pathlib.Path, _seed: int) -> list:
    return [str(target), f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=3072",
            "-print_final_stats=1", f"-artifact_prefix={found}/", str(found), str(corpus)]


def standalone(target: pathlib.Path, seconds: int, _found: pathlib.Path, corpus: pathlib.Path, seed: int) -> list:
    return [str(target), f"--seconds={seconds}", "--mutations=1000000000", f"--seed={seed}", str(corpus)]


# How many inputs a log names, and which was the slowest.
INPUTS = re.compile(r"stat::number_of_executed_units:\s*(\d+)|and (\d+) of \d+ mutations")
SLOWEST = re.compile(r"stat::slowest_unit_time_sec:\s*(\d+)|slowest, ([\d.]+) s of processor time: input: (.*)")


def fuzz(target: pathlib.Path, seconds: int, build: pathlib.Path, make, seed: int) -> dict:
    corpus = pathlib.Path(__file__).parent / "corpus" / target.name
    found = build / "tests" / "fuzz" / "found" / target.name
    found.mkdir(parents=True, exist_ok=True)
    log = build / "tests" / "fuzz" / f"{target.name}.log"
    began = time.monotonic()
    with log.open("w") as out:
        code = subprocess.run(make(target, seconds, found, corpus, seed), stdin=subprocess.DEVNULL, stdout=out,
                              stderr=subprocess.STDOUT, check=False).returncode
    text = log.read_text(errors="replace")
    inputs = INPUTS.search(text)
    slowest = SLOWEST.search(text)
    return {"target": target.name, "code": code, "seconds": time.monotonic() - began, "log": log,
            "inputs": int(inputs.group(1) or inputs.group(2)) if inputs else 0,
            "slowest": float(slowest.group(1) or slowest.group(2)) if slowest else 0.0,
            "slowest_input": pathlib.Path(slowest.group(3)).name if slowest and slowest.group(3) else ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build-fuzz"))
    parser.add_argument("--minutes", type=float, required=True, help="of all targets together")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--seed", type=int, default=1, help="of targets without libFuzzer")
    parser.add_argument("targets", nargs="*", help="all of them if none is named")
    args = parser.parse_args()
    tests = args.build.resolve() / "tests"
    targets = sorted(path for path in tests.glob("*_fuzz")
                     if not args.targets or path.name in args.targets)
    unknown = set(args.targets) - {path.name for path in targets}
    if unknown or not targets:
        parser.error(f"no such target in {tests}: {', '.join(sorted(unknown)) or 'none built'}")
    cache = (args.build / "CMakeCache.txt").read_text(errors="replace")
    make = libfuzzer if re.search(r"^TANDEM_FUZZ:BOOL=(ON|1|TRUE)", cache, re.M) else standalone
    seconds = max(1, int(args.minutes * 60 * args.jobs / len(targets)))
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda target: fuzz(target, seconds, args.build.resolve(), make, args.seed), targets))
    print(f"{'target':24} {'inputs':>12} {'a second':>9} {'slowest, s':>10}")
    for result in results:
        print(f"{result['target']:24} {result['inputs']:12,} {result['inputs'] / result['seconds']:9,.0f}"
              f" {result['slowest']:10.3f} {result['slowest_input']}"
              + (f"  FOUND SOMETHING, see {result['log']}" if result["code"] else ""))
    print(f"{'together':24} {sum(result['inputs'] for result in results):12,}")
    return 1 if any(result["code"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
