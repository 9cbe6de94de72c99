#!/usr/bin/env python3
"""Measures beam searches, and requests with several answers, on one decode node; two builds alternately.

  tests/bench/beams/search.py --model FILE [--builds before/bin,build/bin] [--width 8] [--answers 0] [--prompt 1000]

Each build has a `tandem up` of one decode node that computes prompts itself; all run at once, and one works at a time.
A round asks every build the same: the prompt alone, so that it is cached, and then the search (--answers N: N sampled
answers instead). Prints a line for each search: seconds, tokens/s, the node's processor time (which a busy machine
changes less than the time; with --threads 1 no thread spins), and what the node counted: rows of prompts that it
computed, generated rows, and engine steps. Then medians. Ends with an error if the builds' answers differ.
"""
import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request

COUNTERS = {"prompt rows": "computed_prompt_tokens", "generated rows": "generated_tokens", "steps": "steps_measured"}


class Cluster:
    """One `tandem up` of one decode node."""

    def __init__(self, binaries, args):
        self.name = binaries
        command = [os.path.join(binaries, "tandem"), "up", "--model", args.model, "--prefill", "0", "--decode", "1",
                   "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--kv-blocks", str(args.kv_blocks),
                   "--threads", str(args.threads)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.port = None
        for line in self.process.stdout:
            if found := re.match(r"ready: .*HTTP on 127\.0\.0\.1:(\d+)", line):
                self.port = int(found.group(1))
                break
        if self.port is None:
            sys.exit(f"{' '.join(command)} did not start")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def close(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=30)

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.read().decode()

    def node_cpu_seconds(self):
        """Of the decode node, a child of `tandem up`."""
        total = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
                    name, fields = stat.read().rsplit(")", 1)
            except OSError:
                continue  # it ended meanwhile
            fields = fields.split()
            if int(fields[1]) == self.process.pid and "decode" in name:
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def counters(self):
        time.sleep(1.5)  # a heartbeat brings the node's counters to the router
        text = self.get("/metrics")
        return {label: sum(float(value) for value in
                           re.findall(rf"^tandem_node_{name}_total\S* (\S+)$", text, re.MULTILINE))
                for label, name in COUNTERS.items()}


def measure(cluster, prompt, args):
    cluster.get("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0})
    body = {"prompt": prompt, "max_tokens": args.tokens, "ignore_eos": True, "seed": 7}
    if args.answers > 0:
        body |= {"n": args.answers, "temperature": 1}
    else:
        body |= {"use_beam_search": True, "n": args.width, "temperature": 0}
    before = cluster.counters()
    cpu = cluster.node_cpu_seconds()
    begin = time.monotonic()
    answer = json.loads(cluster.get("/v1/completions", body))
    seconds = time.monotonic() - begin
    cpu = cluster.node_cpu_seconds() - cpu
    after = cluster.counters()
    figures = {"seconds": seconds, "tokens/s": args.tokens * max(1, args.answers) / seconds, "cpu seconds": cpu}
    figures |= {label: after[label] - before[label] for label in COUNTERS}
    return figures, [choice["text"] for choice in answer["choices"]]


def show(label, figures):
    print(f"{label:32}", "  ".join(f"{name} {value:9.2f}" for name, value in figures.items()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--builds", default="build/bin", help="folders of binaries, with commas between")
    parser.add_argument("--model", required=True)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--answers", type=int, default=0)
    parser.add_argument("--prompt", type=int, default=1000, help="tokens")
    parser.add_argument("--tokens", type=int, default=64, help="longest answer")
    parser.add_argument("--kv-blocks", type=int, default=512)
    parser.add_argument("--threads", type=int, default=0, help="compute threads; 0 = the default")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    clusters = [Cluster(binaries, args) for binaries in args.builds.split(",")]
    results = {}
    try:
        for turn in range(args.rounds + 1):  # the first one warms up: a KV block is slow when it is used first
            prompt = random.Random(turn).choices(range(1000, 40000), k=args.prompt)
            answers = []
            for cluster in clusters:
                figures, texts = measure(cluster, prompt, args)
                answers.append(texts)
                if turn > 0:
                    show(cluster.name, figures)
                    results.setdefault(cluster.name, []).append(figures)
            if any(texts != answers[0] for texts in answers):
                sys.exit("the builds' answers differ")
    finally:
        for cluster in clusters:
            cluster.close()
    print("medians")
    for label, runs in results.items():
        show(label, {name: statistics.median(run[name] for run in runs) for name in runs[0]})


if __name__ == "__main__":
    main()
