#!/usr/bin/env python3
"""Goal: build.sh compiles CUDA kernels exactly where they are asked for, starts as many compilers as fit the memory, and
shows how far it is.

Runs the real scripts in a scratch tree where cmake and ninja are stand-ins that record what they get.
"""

import importlib.util
import io
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CMAKE = """#!/bin/sh
mkdir -p build
[ -z "$FAILING_CMAKE" ] || { echo "no package gRPC"; exit 1; }
echo "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" >build/CMakeCache.txt
for argument in "$@"; do
  case "$argument" in
    -DTANDEM_CUDA=*) echo "TANDEM_CUDA:STRING=${argument#*=}" >>build/CMakeCache.txt ;;
  esac
done
: >build/build.ninja
"""

NINJA = """#!/bin/sh
if [ "$1" = -n ]; then
  printf '[1/2] Building CXX object a.o\\n[2/2] Linking x\\n'
  exit 0
fi
echo "[1/2] Building CXX object a.o"
if [ -n "$FAILING_NINJA" ]; then
  printf 'FAILED: a.o\\nc++ -c a.cc\\na.cc:1: error: odd\\nninja: build stopped: subcommand failed.\\n'
  exit 1
fi
echo "[2/2] Linking x"
echo "targets $*"
"""


def load_progress():
    spec = importlib.util.spec_from_file_location("build_progress", ROOT / "scripts/build_progress.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildTest(unittest.TestCase):
    def setUp(self):
        self.tree = Path(tempfile.mkdtemp(prefix="build-test-"))
        self.addCleanup(shutil.rmtree, self.tree)
        (self.tree / "scripts").mkdir()
        for name in ("build.sh", "build_progress.py"):
            shutil.copy(ROOT / "scripts" / name, self.tree / "scripts")
        tools = {"cmake": CMAKE, "ninja": NINJA, "ccache": "#!/bin/sh\n", "c++": "#!/bin/sh\n"}
        # No GPU: nvidia-smi fails; a machine with one skips what depends on it.
        tools["nvidia-smi"] = "#!/bin/sh\nexit 1\n"
        for name, text in tools.items():
            path = self.tree / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755)

    def build(self, *arguments, **environment):
        return subprocess.run(
            [self.tree / "scripts/build.sh", *arguments],
            env={**os.environ, "PATH": f"{self.tree}/bin:{os.environ['PATH']}", **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    def cuda_after(self, *arguments):
        done = self.build(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        cache = (self.tree / "build/CMakeCache.txt").read_text(encoding="utf-8")
        return cache.split("TANDEM_CUDA:STRING=")[1].split()[0]

    def test_cuda_is_left_out_only_until_a_build_wants_it(self):
        if any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists():
            self.skipTest("this machine has a GPU")
        self.assertEqual(self.cuda_after("--binaries", "--cuda-if-gpu"), "SKIP")
        self.assertEqual(self.cuda_after("--cuda-if-gpu"), "SKIP")
        self.assertEqual(self.cuda_after(), "AUTO")
        # A folder that has the kernels keeps them.
        self.assertEqual(self.cuda_after("--cuda-if-gpu"), "AUTO")

    def test_cuda_that_a_user_chose_stays(self):
        self.assertEqual(self.cuda_after("--cuda"), "ON")
        self.assertEqual(self.cuda_after(), "ON")
        cache = self.tree / "build/CMakeCache.txt"
        cache.write_text(cache.read_text(encoding="utf-8").replace("=ON", "=OFF"), encoding="utf-8")
        self.assertEqual(self.cuda_after("--cuda-if-gpu"), "OFF")
        self.assertEqual(self.cuda_after(), "OFF")

    def test_targets_reach_ninja_and_commands_stay_hidden(self):
        done = self.build("--binaries", "unit_base", TANDEM_JOBS="3")
        self.assertIn("-j 3 tandem tandem-router tandem-prefill-node tandem-decode-node unit_base", done.stdout)
        self.assertNotIn("[1/2]", done.stdout)

    def jobs_in(self, group, **limits):
        """The jobs on a machine with 64 GiB in the control group `group`; limits: group → (max, current, cache) in
        GiB; `root` and other names without their slashes."""
        script = self.tree / "scripts/build.sh"
        text = (ROOT / "scripts/build.sh").read_text(encoding="utf-8")
        for path in ("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup"):
            self.assertIn(path, text)
            text = text.replace(path, f"{self.tree}{path}")
        script.write_text(text, encoding="utf-8")
        groups = self.tree / "sys/fs/cgroup"
        shutil.rmtree(groups, ignore_errors=True)
        (self.tree / "proc/self").mkdir(parents=True, exist_ok=True)
        (self.tree / "proc/meminfo").write_text(f"MemAvailable: {64 << 20} kB\n", encoding="utf-8")
        (self.tree / "proc/self/cgroup").write_text(f"0::{group}\n", encoding="utf-8")
        for name, (most, current, cache) in limits.items():
            folder = groups / {"root": ".", "outer": "outer", "inner": "outer/inner"}[name]
            folder.mkdir(parents=True, exist_ok=True)
            most = most if most == "max" else most << 30
            for file, value in (("max", most), ("current", current << 30), ("stat", f"inactive_file {cache << 30}")):
                (folder / f"memory.{file}").write_text(f"{value}\n", encoding="utf-8")
        nproc = self.tree / "bin/nproc"
        nproc.write_text("#!/bin/sh\necho 64\n", encoding="utf-8")
        nproc.chmod(0o755)
        done = self.build(TANDEM_JOBS="")
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(done.stdout.split(" jobs")[0].split()[-1])

    def test_jobs_fit_the_memory_of_the_control_group(self):
        self.assertEqual(self.jobs_in("/"), 42)
        self.assertEqual(self.jobs_in("/", root=(15, 3, 0)), 8)
        # What caches files is free for the asking.
        self.assertEqual(self.jobs_in("/", root=(15, 12, 9)), 8)
        # The group's own limit and those around it count.
        self.assertEqual(self.jobs_in("/outer/inner", inner=(6, 0, 0)), 4)
        self.assertEqual(self.jobs_in("/outer/inner", outer=(15, 3, 0), inner=("max", 0, 0)), 8)
        self.assertEqual(self.jobs_in("/outer/inner", outer=(9, 0, 0), inner=(30, 0, 0)), 6)
        # A group that is seen from within another one has no folder here.
        self.assertEqual(self.jobs_in("/elsewhere/inner", root=(15, 3, 0)), 8)

    def test_failures_are_shown_whole(self):
        done = self.build(FAILING_NINJA="1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("c++ -c a.cc\na.cc:1: error: odd", done.stdout)
        shutil.rmtree(self.tree / "build")
        done = self.build(FAILING_CMAKE="1")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no package gRPC", done.stderr)

    def test_unknown_options_are_named(self):
        done = self.build("--fast")
        self.assertEqual(done.returncode, 1)
        self.assertIn("unknown argument --fast", done.stderr)


class ProgressTest(unittest.TestCase):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def test_a_pipe_gets_a_line_every_ten_seconds(self):
        seconds = [0.0]
        out = io.StringIO()
        progress = load_progress().Progress(4, out, now=lambda: seconds[0])
        for count in range(1, 4):
            seconds[0] += 6
            progress.step(count, 4, "Building CXX object a.cc.o")
        # At 12 s half of the weight is done.
        self.assertEqual(out.getvalue(), " 50 %  step 2 of 4, about 12 s left\n")

    def test_the_average_weight_is_that_of_the_targets_steps(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "build.ninja").write_text(
                "rule cc\n  command = cc -o $out -c $in\nrule link\n  command = ld $in\n"
                "build a.cc.o: cc a.cc\nbuild b.cu.o: cc b.cu\nbuild p: link a.cc.o b.cu.o\nbuild c.cc.o: cc c.cc\n")
            average = load_progress().average_weight(["-C", folder, "-j", "2", "p"])
        self.assertAlmostEqual(average, (4 + 10 + 0.3) / 3)
        self.assertEqual(load_progress().average_weight(["-C", "/nowhere"]), 0)

    def test_a_terminal_has_one_line_that_output_replaces(self):
        seconds = [0.0]
        out = self.Terminal()
        progress = load_progress().Progress(0, out, now=lambda: seconds[0])
        seconds[0] = 90
        progress.step(1, 2, "Linking x")
        progress.other("a.cc:1: warning: odd")
        self.assertEqual(
            out.getvalue(), "\r\x1b[K 50 %  step 1 of 2, about 1 min 30 s left\r\x1b[Ka.cc:1: warning: odd\n"
        )


if __name__ == "__main__":
    unittest.main()
