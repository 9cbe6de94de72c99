"""Compares `tandem bench engine` with a peer on the same machine, model and shapes, by alternated runs.

    python3 -m venv peers && peers/bin/pip install llama-cpp-python    # compiles for this machine, some minutes
    peers/bin/python tests/bench/peers/compare.py --tandem build/bin/tandem --model MODEL.gguf

Each round runs ours, then the peer, each in a process of its own. Printed for each shape: the medians over the rounds,
their range, and the median and range of the rounds' ratios, which is what to quote: two runs one after the other share
whatever else the machine did. Weights are paired by size: ours bf16 with BF16, int8 with Q8_0, int4 with Q4_0 and
as-stored with the file as it is.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

PAIRS = {"bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0", "as-stored": "as-stored"}


def shape_of(result: dict) -> str:
    if result["kind"] == "prefill":
        return f"prefill {result['tokens']}"
    return f"decode {result['sequences']} at {result['context']}"


def run(command: list[str]) -> tuple[str, dict[str, float]]:
    """What the engine calls itself, and tokens per second by shape."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(f"exit code {done.returncode} of {' '.join(command)}")
    report = json.loads(done.stdout)
    speeds = {shape_of(result): result["tokens_per_second"] for result in report["results"]}
    return report.get("engine", report.get("numerics_id")), speeds


def commands_for(weights: str, args) -> tuple[list[str], list[str]]:
    shapes = [f"--prefill={args.prefill}", f"--decode={args.decode}", f"--contexts={args.contexts}"]
    model, threads = [f"--model={args.model}"], [f"--threads={args.threads}"]
    ours = [str(args.tandem), "bench", "engine", "--json", f"--weights={weights}", f"--time={args.time:g}s"]
    script = pathlib.Path(__file__).with_name("llama_cpp_engine.py")
    peer = [sys.executable, str(script), f"--weights={PAIRS[weights]}", f"--folder={args.folder}", f"--time={args.time:g}"]
    return ours + model + threads + shapes, peer + model + threads + shapes


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def compare(weights: str, args) -> None:
    ours_command, peer_command = commands_for(weights, args)
    ours: dict[str, list[float]] = {}
    peer: dict[str, list[float]] = {}
    names: dict[int, str] = {}
    for _ in range(args.rounds):
        for command, figures in ((ours_command, ours), (peer_command, peer)):
            name, speeds = run(command)
            names[id(figures)] = name
            for shape, speed in speeds.items():
                figures.setdefault(shape, []).append(speed)
    for shape, speeds in ours.items():
        ratios = [a / b for a, b in zip(speeds, peer[shape], strict=True)]
        cells = [weights, shape, spread(speeds, 0), spread(peer[shape], 0), spread(ratios, 2)]
        print("| " + " | ".join(cells) + " |", flush=True)
    print(f"<!-- {weights}: {names[id(ours)]}; {names[id(peer)]} -->", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", type=pathlib.Path, default=pathlib.Path("build/bin/tandem"))
    parser.add_argument("--model", type=pathlib.Path, required=True, help="a GGUF file")
    parser.add_argument("--weights", default="bf16,int8,int4,as-stored", help=f"of {', '.join(PAIRS)}")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("."), help="where made files are kept")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prefill", default="512")
    parser.add_argument("--decode", default="1,8,32")
    parser.add_argument("--contexts", default="512")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--time", type=float, default=1.0, help="seconds for each shape and run")
    args = parser.parse_args()
    chosen = args.weights.split(",")
    for weights in chosen:
        if weights not in PAIRS:
            parser.error(f"--weights: {weights}, expected some of {', '.join(PAIRS)}")
    print(f"{args.rounds} alternated rounds, {args.threads} threads; tokens per second: median (range)")
    print("| Weights | Shape | Tandem | llama.cpp | Ratio of a round |\n|---|---|---|---|---|")
    for weights in chosen:
        compare(weights, args)


if __name__ == "__main__":
    main()
