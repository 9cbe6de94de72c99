#!/usr/bin/env python3
"""Runs ninja and shows how far it is: percent, steps, time left.

  scripts/build_progress.py ARGUMENTS...    as of ninja

On a terminal one line is updated; otherwise a line is written every ten seconds. Warnings and errors
pass through; command lines are shown only of a step that failed. Exits with ninja's status.

The time left assumes that what remains goes as fast as what is done. Steps count by the kind of
what they make, because ninja before 1.12 does not estimate.
"""

import os
import re
import signal
import subprocess
import sys
import time

STATUS = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")
LINE_SECONDS = 10

# Relative CPU time of a step, measured (docs/measurements/first_build.md).
WEIGHTS = (
    (re.compile(r"Building CUDA object"), 10),
    (re.compile(r"/unity/unity_"), 10),
    (re.compile(r"/proto/|\.pb\.cc\.o$"), 5),
    (re.compile(r"/kernels/"), 2),
    (re.compile(r"Building CXX object"), 4),
)


def weight(step):
    for pattern, value in WEIGHTS:
        if pattern.search(step):
            return value
    return 0.3  # links and generated sources


OUTPUT = re.compile(r" -o (\S+\.o) ")


def average_weight(arguments):
    """Average weight of the steps that make the targets, done or not; 0 when ninja cannot say.

    ninja's dry run is no help: where CMake has to look at its globs again it lists that step alone.
    """
    folder, targets = [], []
    rest = iter(arguments)
    for argument in rest:
        if argument == "-C":
            folder = ["-C", next(rest, ".")]
        elif argument in ("-j", "-k", "-l"):
            next(rest, None)
        elif not argument.startswith("-"):
            targets.append(argument)
    commands = subprocess.run(
        ["ninja", *folder, "-t", "commands", *targets], capture_output=True, text=True, check=False
    ).stdout.splitlines()
    weights = []
    for command in commands:
        made = OUTPUT.search(command)
        kind = "CUDA" if made and made.group(1).endswith(".cu.o") else "CXX"
        weights.append(weight(f"Building {kind} object {made.group(1)}" if made else ""))
    return sum(weights) / len(weights) if weights else 0


def duration(seconds):
    seconds = int(seconds)
    return f"{seconds} s" if seconds < 60 else f"{seconds // 60} min {seconds % 60:02d} s"


class Progress:
    """Writes progress to `out`; `now` gives seconds."""

    def __init__(self, average_weight, out=sys.stdout, now=time.monotonic):
        self.average = average_weight
        self.done = 0.0
        self.out = out
        self.now = now
        self.start = self.last = now()
        self.terminal = out.isatty()
        self.shown = ""

    def text(self, count, all_steps):
        elapsed = self.now() - self.start
        # Where only some steps are left, theirs may weigh more or less than the average.
        estimate = self.done / (self.average * all_steps) if self.average > 0 else count / all_steps
        share = min(estimate, 0.99) if count < all_steps else 1.0
        left = f", about {duration(elapsed * (1 - share) / share)} left" if share > 0.02 else ""
        return f"{int(share * 100):3d} %  step {count} of {all_steps}{left}"

    def step(self, count, all_steps, description):
        self.done += weight(description)
        if self.terminal:
            self.shown = self.text(count, all_steps)
            self.out.write(f"\r\x1b[K{self.shown}")
            self.out.flush()
        elif self.now() - self.last >= LINE_SECONDS:
            self.last = self.now()
            self.out.write(self.text(count, all_steps) + "\n")
            self.out.flush()

    def other(self, line):
        """A line that is no status: a warning, an error, or ninja's last word."""
        self.clear()
        self.out.write(line + "\n")
        self.out.flush()

    def clear(self):
        if self.terminal and self.shown:
            self.out.write("\r\x1b[K")
            self.shown = ""


def main(arguments):
    progress = Progress(average_weight(arguments))
    environment = {**os.environ, "NINJA_STATUS": "[%f/%t] "}
    # Ctrl-C reaches ninja, too; its end is awaited here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with subprocess.Popen(
        ["ninja", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as ninja:
        for line in ninja.stdout:
            line = line.rstrip("\n")
            status = STATUS.match(line)
            if status:
                progress.step(int(status.group(1)), int(status.group(2)), status.group(3))
            elif line and not line.startswith("ninja: Entering directory"):
                progress.other(line)
    progress.clear()
    return ninja.returncode if ninja.returncode >= 0 else 128 - ninja.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
