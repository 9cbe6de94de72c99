#!/usr/bin/env python3
"""Measures what keys and TLS cost: API keys with an audit log (--api-keys, --audit-log), TLS where clients ask
(--tls-cert), and TLS between router and nodes (--fleet-tls).

  tests/bench/tls/compare.py --build build [--rounds 5] [--requests 300] [--target https] [--verbose]

Each round starts `tandem up` of the hash engine (one prefill node, one decode node) once for each of: neither, keys,
TLS for clients, both, TLS between router and nodes, all. It sends the same load by `tandem bench serve`, and reads the
processes' CPU time from /proc. Prints a line for each run, then medians, and the medians of each round's ratio to the
run with neither. Run it on an idle machine.
"""
import argparse
import hashlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading

VARIANTS = ("neither", "keys", "tls", "keys+tls", "fleet tls", "all")
KEY = "a key of the bench"
PROGRAMS = {"tandem-router": "router", "tandem-prefill-": "prefill", "tandem-decode-n": "decode"}


def cpu_ms(pid):
    """Of all threads that run; in nanoseconds, where /proc/PID/stat counts in hundredths of a second."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/schedstat", encoding="utf-8") as stat:
                total += int(stat.read().split()[0])
        except OSError:
            continue  # it has ended
    return total / 1e6


def children(parent):
    """role → pid of the programs that a process has started."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
                name, rest = stat.read().split("(", 1)[1].rsplit(") ", 1)
        except OSError:
            continue
        if int(rest.split()[1]) == parent and name in PROGRAMS:
            found[PROGRAMS[name]] = int(pid)
    return found


class Cluster:
    def __init__(self, args, certs, variant):
        self.clients_tls = variant in ("tls", "keys+tls", "all")
        self.keys = variant in ("keys", "keys+tls", "all")
        self.certs = certs
        self.program = os.path.join(args.build, "bin", "tandem")
        command = [self.program, "up", "--engine", "hash", "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
        if self.keys:
            command += ["--api-keys", f"{certs}/keys", "--audit-log", f"{certs}/audit.jsonl"]
        if variant in ("fleet tls", "all"):
            command += ["--fleet-tls", certs]
        if self.clients_tls:
            command += ["--tls-cert", f"{certs}/router/tls.crt", "--tls-key", f"{certs}/router/tls.key"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.grpc = self.http = ""
        for line in self.process.stdout:
            if args.verbose:
                print(line, end="", file=sys.stderr)
            if found := re.match(r"ready: .*gRPC on ([^\s;]+); HTTP on ([^\s;]+)", line):
                self.grpc, self.http = found.groups()
                break
        if not self.http:
            sys.exit("tandem up did not start: run with --verbose")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.pids = children(self.process.pid)

    def close(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)

    def load(self, args, requests):
        scheme = "grpc" if args.target == "grpc" else "https" if self.clients_tls else "http"
        command = [self.program, "bench", "serve", "--target",
                   f"{scheme}://{self.grpc if scheme == 'grpc' else self.http}", "--requests", str(requests),
                   "--concurrency", str(args.concurrency), "--prompt-tokens", str(args.prompt_tokens),
                   "--output-tokens", str(args.output_tokens), "--warmup", "0", "--json", "-"]
        if self.clients_tls:
            command += ["--tls-ca", f"{self.certs}/ca.crt"]
        if self.keys:
            command += ["--api-key", KEY]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            sys.exit(f"bench serve failed:\n{result.stdout}{result.stderr}")
        return json.loads(result.stdout)["summary"]


def measure(args, certs, variant):
    cluster = Cluster(args, certs, variant)
    try:
        cluster.load(args, 20)
        before = {role: cpu_ms(pid) for role, pid in cluster.pids.items()}
        summary = cluster.load(args, args.requests)
        figures = {
            f"{role} CPU, ms a request": (cpu_ms(pid) - before[role]) / args.requests
            for role, pid in cluster.pids.items()
        }
    finally:
        cluster.close()
    figures["output tokens/s"] = summary["output_tokens_per_second"]
    figures["first token p50, ms"] = summary["ttft_ms"]["p50"]
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--target", choices=("grpc", "http"), default="http")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    runs = {variant: [] for variant in VARIANTS}
    with tempfile.TemporaryDirectory() as certs:
        made = [os.path.join(args.build, "bin", "tandem"), "certs", "make", "--folder", certs]
        subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        with open(f"{certs}/keys", "w", encoding="utf-8") as keys:
            keys.write(f"bench {hashlib.sha256(KEY.encode()).hexdigest()} tokens_per_minute=1000000000\n")
        for number in range(args.rounds):
            # The order changes, so that no variant always runs after the same other.
            turn = number % len(VARIANTS)
            for variant in VARIANTS[turn:] + VARIANTS[:turn]:
                runs[variant].append(measure(args, certs, variant))
                shown = ", ".join(f"{name} {value:.3f}" for name, value in runs[variant][-1].items())
                print(f"round {number} {variant:8} {shown}", flush=True)
    print(f"\n{'median (ratio to neither)':28}" + "".join(f"{variant:>20}" for variant in VARIANTS))
    for name in runs["neither"][0]:
        cells = []
        for variant in VARIANTS:
            ratio = statistics.median(run[name] / base[name] if base[name] else float("nan")
                                      for run, base in zip(runs[variant], runs["neither"]))
            cells.append(f"{statistics.median(run[name] for run in runs[variant]):.3f} ({ratio:.2f})")
        print(f"{name:28}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
