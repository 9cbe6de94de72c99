#!/usr/bin/env python3
"""Counts how often a split prompt, or a sequence that has lent KV, is computed again.

  tests/bench/lending/splits.py --build build --model smollm2 [--requests 300] [--seeds 101,102]

Starts a router, two prefill nodes with room for every prompt, and two decode nodes that hold one prompt of 288 tokens.
So prefill nodes lend the beginnings of longer prompts to each other, and decode nodes take the loans over. Two clients
ask for answers to prompts of about one, two and three partitions. Prints, for each seed, what nodes counted
(tandem_node_loans*), and why the router placed sequences again.
"""
import argparse
import collections
import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading

BLOCK_TOKENS = 32
PARTITION = 256
VOCABULARY = 49152
CLIENTS = 2
NODES = [("prefill", "prefill-0", 256), ("prefill", "prefill-1", 256), ("decode", "decode-0", 9),
         ("decode", "decode-1", 9)]


class Cluster:
    """A router and its nodes, and what they wrote."""

    def __init__(self, args, folder):
        self.args, self.folder, self.processes = args, folder, []
        self.start("router", ["--grpc=127.0.0.1:0", "--fleet=127.0.0.1:0", "--http=127.0.0.1:0",
                              "--heartbeat-interval=100ms"])
        started = self.await_line("router", r"router started .* fleet=(\S+) http=127\.0\.0\.1:(\d+)", 1)[0]
        self.port = int(started[1])
        for role, node, blocks in NODES:
            self.start(f"{role}-node", [f"--routers={started[0]}", f"--id={node}", f"--block-tokens={BLOCK_TOKENS}",
                                        f"--kv-blocks={blocks}", "--threads=1", "--lend-fraction=0.9"], node)
        self.await_line("router", r"node joined", len(NODES))

    def start(self, program, options, name=None):
        command = [os.path.join(self.args.build, "bin", f"tandem-{program}"), f"--model={self.args.model}", *options]
        with open(os.path.join(self.folder, name or program), "w", encoding="utf-8") as log:
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                                   stderr=subprocess.STDOUT))

    def log(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as log:
            return log.read()

    def await_line(self, name, pattern, count):
        while len(found := re.findall(pattern, self.log(name))) < count:
            if any(process.poll() is not None for process in self.processes):
                sys.exit(f"a program ended:\n{self.log(name)}")
            threading.Event().wait(0.1)
        return found

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if answer.status != 200:
            sys.exit(f"status {answer.status}: {text}")
        return text

    def close(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(timeout=60)


def requests_of(chance, count):
    """Prompts that share beginnings, just below and above whole partitions."""
    families = [[chance.randrange(VOCABULARY) for _ in range(3 * PARTITION)] for _ in range(5)]
    for _ in range(count):
        partitions = chance.choices([1, 2, 3], [16, 3, 1])[0]
        length = partitions * PARTITION - 10 + chance.randrange(51)
        shared = min(3 * PARTITION, length - 1 - chance.randrange(20))
        prompt = chance.choice(families)[:shared] + [chance.randrange(VOCABULARY) for _ in range(length - shared)]
        yield json.dumps({"prompt": prompt, "max_tokens": 1 + chance.randrange(16), "temperature": 0})


def measure(args, seed, folder):
    cluster = Cluster(args, folder)
    try:
        bodies = list(requests_of(random.Random(seed), args.requests))

        def client(first):
            for body in bodies[first::CLIENTS]:
                cluster.ask("POST", "/v1/completions", body)
        clients = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        counts = re.findall(r'^(tandem_node_loans\w*)\{node="([^"]*)"[^}]*\} (\d+)', cluster.ask("GET", "/metrics"),
                            re.MULTILINE)
    finally:
        cluster.close()
    print(f"seed {seed}, {args.requests} requests")
    for name in sorted({name for name, _, _ in counts}):
        print(f"  {name:36}", "  ".join(f"{node} {value}" for known, node, value in counts if known == name))
    reasons = re.findall(r'(?:placing the sequence again|retrying the prefill leg) .* why="([^"]*)"', cluster.log("router"))
    for why, times in collections.Counter(re.sub(r"lease \d+", "a lease", why) for why in reasons).most_common():
        print(f"  placed again {times} times: {why}")
    gave_way = sum(cluster.log(node).count("a sequence gives way to an older one") for _, node, _ in NODES)
    print(f"  sequences that gave way to an older one: {gave_way}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seeds", default="101,102")
    args = parser.parse_args()
    for seed in args.seeds.split(","):
        with tempfile.TemporaryDirectory() as folder:
            measure(args, int(seed), folder)


if __name__ == "__main__":
    main()
