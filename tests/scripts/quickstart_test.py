#!/usr/bin/env python3
"""Goal: quickstart.sh leaves nothing running, whatever happens to the cluster, the request or itself.

Runs the real script in a scratch tree where installing, building and fetching are stubs and `tandem`
is a small stand-in whose behaviour each test chooses.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# `up` records its pid, says ready, and ends when told to; `generate` writes its arguments.
STAND_IN = """#!/usr/bin/env python3
import os, signal, sys
mode, here = os.environ["STAND_IN"], os.path.dirname(os.path.abspath(__file__))
if sys.argv[1] == "up":
    open(here + "/up.pid", "w").write(str(os.getpid()))
    if mode == "dies":
        sys.exit("cannot start: the reason")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    print("router-0 | starting", *sys.argv[1:], flush=True)
    print("ready-timeout=2m (default)", flush=True)
    asked = sys.argv[sys.argv.index("--grpc") + 1]
    bound = "127.0.0.1:4242" if asked.endswith(":0") else asked
    print(f"ready: all; gRPC on {bound}; HTTP on 127.0.0.1:8000; Ctrl-C drains", flush=True)
    for line in range(20000):  # more than a pipe holds
        print("router-0 | line", line, flush=True)
    got = signal.sigwait({signal.SIGINT, signal.SIGTERM})
    print("drained after", signal.Signals(got).name, flush=True)
    sys.exit(5 if mode == "drains badly" else 0)
if mode == "request fails":
    sys.exit("no such luck")
if mode == "request hangs":
    print("asking", flush=True)
    signal.sigwait({signal.SIGUSR1})
print("answer to", *sys.argv[2:], flush=True)
"""


class QuickstartTest(unittest.TestCase):
    def setUp(self):
        self.tree = Path(tempfile.mkdtemp(prefix="quickstart-test-"))
        self.addCleanup(shutil.rmtree, self.tree)
        self.bin = self.tree / "build/bin"
        self.bin.mkdir(parents=True)
        scripts = self.tree / "scripts"
        scripts.mkdir()
        shutil.copy(ROOT / "scripts/quickstart.sh", scripts)
        self.write(scripts / "install_packages.sh", "#!/bin/sh\n")
        self.write(scripts / "build.sh", '#!/bin/sh\necho "build.sh $*"\n')
        self.write(scripts / "fetch_model.py", "print('progress')\nprint('/models/model.gguf')\n")
        self.write(self.bin / "tandem", STAND_IN)

    @staticmethod
    def write(path, text):
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def start(self, mode, *arguments):
        return subprocess.Popen(
            [self.tree / "scripts/quickstart.sh", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "STAND_IN": mode},
        )

    def run_to_end(self, mode, *arguments):
        process = self.start(mode, *arguments)
        output, _ = process.communicate(timeout=60)
        self.expect_cluster_gone()
        return process.returncode, output

    def expect_cluster_gone(self):
        pid = int((self.bin / "up.pid").read_text(encoding="utf-8"))
        self.assertFalse(Path(f"/proc/{pid}").exists(), "the cluster is still there")

    def log(self):
        return (self.tree / "build/quickstart.log").read_text(encoding="utf-8")

    def test_answers_and_drains(self):
        status, output = self.run_to_end("works", "--prefill", "2", "--decode=3")
        self.assertEqual(status, 0, output)
        self.assertIn("/models/model.gguf", output)
        self.assertIn("--chat=What is the capital of France? --temperature 0", output)
        self.assertIn("--prefill 2 --decode 3", self.log())
        self.assertTrue(self.log().endswith("drained after SIGINT\n"))

    def test_a_bare_port_is_one_of_this_machine(self):
        status, output = self.run_to_end("works", "--grpc", "1", "--http=2", "--cuda")
        self.assertEqual(status, 0, output)
        self.assertIn("--grpc 127.0.0.1:1 --http 2", self.log())
        self.assertIn("answer to --router 127.0.0.1:1 ", output)
        self.assertIn("build.sh --binaries --cuda\n", output)

    def test_port_0_is_asked_where_it_was_bound(self):
        status, output = self.run_to_end("works", "--grpc", "0")
        self.assertEqual(status, 0, output)
        self.assertIn("--grpc 127.0.0.1:0 ", self.log())
        self.assertIn("answer to --router 127.0.0.1:4242 ", output)

    def test_cuda_kernels_are_built_where_a_gpu_is(self):
        _, output = self.run_to_end("works")
        self.assertIn("build.sh --binaries --cuda-if-gpu\n", output)

    def test_base_model_gets_a_plain_prompt(self):
        status, output = self.run_to_end("works", "--model", "gemma3", "--prompt", "Once upon")
        self.assertEqual(status, 0, output)
        self.assertIn(" Once upon --temperature", output)
        self.assertNotIn("--chat", output)

    def test_cluster_that_dies_is_reported_with_its_reason(self):
        status, output = self.run_to_end("dies")
        self.assertEqual(status, 1)
        self.assertIn("cannot start: the reason", output)

    def test_failed_request_stops_the_cluster(self):
        status, output = self.run_to_end("request fails")
        self.assertEqual(status, 1)
        self.assertIn("no such luck", output)
        self.assertIn("drained after SIGINT", self.log())

    def test_failed_drain_is_a_failure(self):
        status, output = self.run_to_end("drains badly")
        self.assertEqual(status, 1)
        self.assertIn("ended with status 5", output)

    def test_signal_during_a_request_stops_everything(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = self.start("request hangs")
            for line in process.stdout:
                if line == "asking\n":
                    break
            process.send_signal(number)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, 128 + number)
            self.expect_cluster_gone()

    def test_served_cluster_stays_until_told(self):
        process = self.start("works", "--serve")
        for line in process.stdout:
            if line.startswith("Or talk to it"):
                break
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.expect_cluster_gone()

    def test_bad_arguments_are_named(self):
        for arguments, expected in (
            (["--model", "gpt"], "--model is 'gpt'"),
            (["--decode", "0"], "--decode is '0'"),
            (["--prefill"], "--prefill needs a value"),
            (["--fast"], "unknown argument --fast"),
        ):
            process = self.start("works", *arguments)
            output, _ = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 1)
            self.assertIn(expected, output)


if __name__ == "__main__":
    unittest.main()
