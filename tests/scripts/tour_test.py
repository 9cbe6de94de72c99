#!/usr/bin/env python3
"""Goal: README's short tour works word by word.

Runs every command of the tour as it is printed, in order, in a folder where build/ is this build:
the first code block starts the cluster, the second talks to it, the third needs no model. Each
command must end with status 0 within its time, and print what a reader is promised. The fourth
starts nodes with small pools, and the fifth asks a prompt that only fits because they lend.

The tour names the default ports, so it runs in a network namespace of its own. Where the system
allows none, or the tour's model is not on this machine, the test skips (exit status 77).

    tour_test.py BINARY_DIR
"""
import ctypes
import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SKIP = 77
CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
READY_SECONDS, COMMAND_SECONDS = 120, 240

# A part of a command, and what its output must hold.
PROMISES = {
    "What is the capital": "Paris",
    "$(seq -s ' ' 25)": "65 prompt (64 cached), 48 output",  # the second time
    "$(seq -s ' ' 400)": "1491 prompt (0 cached), 16 output",  # three nodes of 1,024 tokens each
    "tandem trace": "first token",
    "curl": '"text"',
    "--n 3": "[2]",
    "--batch": "0 failed",
    "--regex": " years",
    "tandem status": "prefill-0",
    "bench serve": "answered/s",
}


def skip(why):
    print("SKIPPED:", why)
    sys.exit(SKIP)


def code_blocks(text, heading):
    """The commands of each ```sh block below `heading`, comments and blank lines left out."""
    section = re.split(r"^## ", text, flags=re.M)
    section = next(part for part in section if part.startswith(heading + "\n"))
    blocks = re.findall(r"^```sh\n(.*?)^```", section, flags=re.M | re.S)
    return [[line for line in block.splitlines() if line.strip()] for block in blocks]


def enter_network_namespace():
    """Leaves the machine's network for one that has a loopback interface and nothing else."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Root needs no user namespace, which some systems forbid.
    flags = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if libc.unshare(flags) != 0:
        skip("no network namespace: " + os.strerror(ctypes.get_errno()))
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


class Cluster:
    """`tandem up`, from ready to drained."""

    def __init__(self, command, folder):
        self.lines = []
        self.process = subprocess.Popen(
            ["bash", "-c", "exec " + command], cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.ready.wait(READY_SECONDS)
        if not any(line.startswith("ready: ") for line in self.lines):
            self.process.kill()
            sys.exit("not ready: " + command + "\n" + "".join(self.lines))

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("ready: "):
                self.ready.set()
        self.ready.set()

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(READY_SECONDS)
        self.reader.join()
        if status != 0:
            sys.exit("the cluster ended with status %d:\n%s" % (status, "".join(self.lines[-20:])))


def run(command, folder):
    print("$", command, flush=True)
    result = subprocess.run(["bash", "-c", command], cwd=folder, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            timeout=COMMAND_SECONDS, check=False)
    print(result.stdout[-2000:], flush=True)
    if result.returncode != 0:
        sys.exit("status %d, expected 0: %s" % (result.returncode, command))
    for part, promise in PROMISES.items():
        if part in command and promise not in result.stdout:
            sys.exit("the output does not hold %r: %s" % (promise, command))


def main():
    binary_dir = os.path.abspath(sys.argv[1])
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
        blocks = code_blocks(readme.read(), "A short tour")
    if len(blocks) != 5:
        sys.exit("README's tour has %d code blocks, expected 5" % len(blocks))
    (start,), talk, without_model, (start_lending,), ask_lending = blocks
    models = os.environ.get("TANDEM_MODELS") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tandem", "models")
    if not os.path.exists(os.path.join(models, MODEL_FILE)):
        skip("no %s in %s: scripts/fetch_model.py smollm2" % (MODEL_FILE, models))
    enter_network_namespace()
    # An earlier run's, which may be another version's.
    for leftover in ("/tmp/in.jsonl", "/tmp/out.jsonl"):
        if os.path.exists(leftover):
            os.remove(leftover)
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(binary_dir, os.path.join(folder, "build"))
        cluster = Cluster(start, folder)
        for command in talk:
            run(command, folder)
        cluster.stop()
        cluster = Cluster(start_lending, folder)
        for command in ask_lending:
            run(command, folder)
        cluster.stop()
        for command in without_model:
            if " up " in command:
                Cluster(command.split("#")[0], folder).stop()
            else:
                run(command, folder)


if __name__ == "__main__":
    main()
