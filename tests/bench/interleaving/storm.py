#!/usr/bin/env python3
"""Measures how long prompts delay generated tokens on a node that computes both.

  tests/bench/interleaving/storm.py --build build --model FILE [--slo 0,40ms,60ms] [--rounds 3] [--seconds 20]

For each --itl-slo it starts `tandem up` with one decode node and no prefill node, streams 8 answers at once, and
measures the gaps between the tokens of each: first alone, then while prompts of 2,048 random tokens arrive, --prompts
at a time. Each round runs every SLO once. Prints a line for each run, then medians: the gaps' p50 and p99, the
generated tokens a second, and the prompt tokens a second that were computed meanwhile.
"""
import argparse
import http.client
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

STREAMS = 8


class Cluster:
    """One `tandem up` of one decode node."""

    def __init__(self, args, slo):
        command = [os.path.join(args.build, "bin", "tandem"), "up", "--model", args.model, "--prefill", "0",
                   "--decode", "1", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--kv-blocks", "512",
                   "--itl-slo", slo]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.address = ""
        self.port = None
        for line in self.process.stdout:
            if args.verbose:
                print(line, end="", file=sys.stderr)
            if found := re.match(r"ready: .*gRPC on (\S+); HTTP on 127\.0\.0\.1:(\d+)", line):
                self.address, self.port = found.group(1), int(found.group(2))
                break
        if self.port is None:
            sys.exit("tandem up did not start: run with --verbose")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        # Until every KV block has been written: a block's memory is slow when it is used first.
        for _ in range(10):
            self.complete([random.randrange(1000, 40000) for _ in range(2048)], 1, False)

    def close(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=30)

    def complete(self, prompt, max_tokens, stream, on_part=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
                           "stream": stream})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            print(f"status {answer.status}: {answer.read()!r}", file=sys.stderr)
            self.close()
            os._exit(1)  # from whichever thread this is
        if not stream:
            answer.read()
        else:
            while line := answer.readline():
                if line.startswith(b"data: {") and not on_part():
                    break
        connection.close()


class Run:
    """Streams for as long as asked, and perhaps a storm of prompts beside them."""

    def __init__(self, cluster, args, seed):
        self.cluster, self.args = cluster, args
        self.random = random.Random(seed)
        self.measuring, self.stop = threading.Event(), threading.Event()
        self.gaps, self.prompts_done, self.last_done = [], 0, None
        self.lock = threading.Lock()

    def tokens(self, count):
        with self.lock:
            return [self.random.randrange(1000, 40000) for _ in range(count)]

    def stream(self, started):
        last = None

        def on_part():
            nonlocal last
            now = time.monotonic()
            if last is None:
                started.release()
            elif self.measuring.is_set():
                self.gaps.append(now - last)
            last = now
            return not self.stop.is_set()
        self.cluster.complete(self.tokens(64), 6000, True, on_part)

    def storm(self):
        while not self.stop.is_set():
            self.cluster.complete(self.tokens(2048), 1, False)
            if not self.stop.is_set():
                with self.lock:
                    self.prompts_done += 1
                    self.last_done = time.monotonic()

    def measure(self, prompts):
        started = threading.Semaphore(0)
        threads = [threading.Thread(target=self.stream, args=(started,)) for _ in range(STREAMS)]
        for thread in threads:
            thread.start()
        for _ in range(STREAMS):
            started.acquire()
        storm = [threading.Thread(target=self.storm) for _ in range(prompts)]
        for thread in storm:
            thread.start()
        self.measuring.set()
        begin = time.monotonic()
        time.sleep(self.args.seconds)
        self.stop.set()
        seconds = time.monotonic() - begin
        gaps = sorted(self.gaps)
        # Until the last prompt that was done: what is done of the others is not known.
        prompt_rate = 2048 * self.prompts_done / (self.last_done - begin) if self.last_done else 0
        for thread in threads + storm:
            thread.join()
        return {"p50": 1e3 * gaps[len(gaps) // 2], "p99": 1e3 * gaps[len(gaps) * 99 // 100], "max": 1e3 * gaps[-1],
                "generated/s": len(gaps) / seconds, "prompt/s": prompt_rate}


def show(label, figures):
    print(f"{label:24}", "  ".join(f"{name} {value:8.1f}" for name, value in figures.items()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--model", required=True)
    parser.add_argument("--slo", default="0,30ms,60ms")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    results = {}
    for turn in range(args.rounds):
        for slo in args.slo.split(","):
            cluster = Cluster(args, slo)
            for prompts in ([0, args.prompts] if slo == "0" else [args.prompts]):
                label = "alone" if prompts == 0 else f"storm, --itl-slo {slo}"
                figures = Run(cluster, args, turn).measure(prompts)
                show(label, figures)
                results.setdefault(label, []).append(figures)
            if args.verbose:
                subprocess.run([os.path.join(args.build, "bin", "tandem"), "status", "--router", cluster.address],
                               stdout=sys.stderr, check=False)
            cluster.close()
    print("medians")
    for label, runs in results.items():
        show(label, {name: statistics.median(run[name] for run in runs) for name in runs[0]})


if __name__ == "__main__":
    main()
