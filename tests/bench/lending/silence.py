#!/usr/bin/env python3
"""Measures what a creditor that stops for a while costs the sequences of its debtor.

  tests/bench/lending/silence.py --build build [--vs OTHER/build] [--stops 0.3,2.5] [--rounds 5]

Starts a router, a decode node (the debtor) and two prefill nodes with more memory (creditors), with the hash engine and
steps of 10 ms. One answer outgrows the decode node and has lent KV; two others run beside it and fit. Then a creditor is
stopped (SIGSTOP) and goes on after a while. Prints the longest gap between two tokens of the answer that has lent KV,
and of the two others, and the loans that were lost. With --vs, the programs of two builds run in turn.
"""
import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

BESIDE = 2
STEP_MS = 10
CREDITORS = ["creditor-0", "creditor-1"]


class Cluster:
    """A router, a debtor and its creditors, and what they wrote."""

    def __init__(self, build, folder):
        self.build, self.folder, self.processes = build, folder, {}
        self.start("router", "router", ["--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0", "--http=127.0.0.1:0",
                                        "--heartbeat-interval=50ms", "--node-lost-after=10s"])
        fleet, port = self.await_line("router", r"router started .* fleet=(\S+) http=127\.0\.0\.1:(\d+)")
        self.port = int(port)
        for role, name, blocks in [("decode", "debtor", 64), *[("prefill", name, 256) for name in CREDITORS]]:
            self.start(f"{role}-node", name, [f"--routers={fleet}", f"--id={name}", "--block-tokens=16",
                                              f"--kv-blocks={blocks}", "--lend-fraction=0.9",
                                              f"--hash-step-time={STEP_MS}ms"])
            self.await_line("router", f"node joined.*{name}")

    def start(self, program, name, options):
        command = [os.path.join(self.build, "bin", f"tandem-{program}"), "--engine=hash", *options]
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                                    stderr=subprocess.STDOUT)

    def await_line(self, name, pattern):
        while True:
            with open(os.path.join(self.folder, name), encoding="utf-8") as log:
                text = log.read()
            if found := re.search(pattern, text):
                return found.groups()
            if any(process.poll() is not None for process in self.processes.values()):
                sys.exit(f"a program ended:\n{text}")
            threading.Event().wait(0.05)

    def metric(self, name, node):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        values = re.findall(rf'^{name}\{{node="{node}"[^}}]*\}} (\d+)', text, re.MULTILINE)
        return int(values[0]) if values else 0

    def close(self):
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            process.wait(timeout=60)


class Stream(threading.Thread):
    """One answer, and when each of its tokens came."""

    def __init__(self, port, prompt, tokens):
        super().__init__()
        self.times, self.port = [], port
        self.body = json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True,
                                "temperature": 0})
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("POST", "/v1/completions", self.body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(answer.read().decode())
        for line in answer:
            if line.startswith(b"data: {"):
                self.times.append(time.monotonic())
        connection.close()

    def await_tokens(self, count):
        while self.is_alive() and len(self.times) < count:
            threading.Event().wait(0.01)

    def longest_gap(self, begin):
        return max((b - a for a, b in zip(self.times, self.times[1:]) if b >= begin), default=0)


def measure(build, stop, folder):
    cluster = Cluster(build, folder)
    try:
        lends = Stream(cluster.port, list(range(200)), 1400)
        lends.await_tokens(850)  # more than its node holds
        beside = [Stream(cluster.port, [i] * 20, 300) for i in range(BESIDE)]
        for stream in beside:
            stream.await_tokens(20)
        began = time.monotonic()
        lent = {name: cluster.metric("tandem_node_blocks_lent", name) for name in CREDITORS}
        creditor = cluster.processes[max(lent, key=lent.get)]
        creditor.send_signal(signal.SIGSTOP)
        threading.Event().wait(stop)
        creditor.send_signal(signal.SIGCONT)
        for stream in [lends, *beside]:
            stream.join()
        return (lends.longest_gap(began), max(stream.longest_gap(began) for stream in beside),
                cluster.metric("tandem_node_loans_lost_total", "debtor"))
    finally:
        cluster.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--vs")
    parser.add_argument("--stops", default="0.3,2.5")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    builds = [args.build] + ([args.vs] if args.vs else [])
    for stop in map(float, args.stops.split(",")):
        results = {build: [] for build in builds}
        for _ in range(args.rounds):
            for build in builds:
                with tempfile.TemporaryDirectory() as folder:
                    results[build].append(measure(build, stop, folder))
        for build, runs in results.items():
            lends, beside, lost = zip(*runs)
            print(f"stopped for {stop:g} s, {build}: longest gap of the answer with lent KV "
                  f"{statistics.median(lends) * 1000:.0f} ms, beside it {statistics.median(beside) * 1000:.0f} ms "
                  f"({', '.join(f'{gap * 1000:.0f}' for gap in sorted(beside))}), loans lost "
                  f"{', '.join(map(str, sorted(lost)))}", flush=True)


if __name__ == "__main__":
    main()
