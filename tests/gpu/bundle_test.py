#!/usr/bin/env python3
"""Goal: the bundle that scripts/make_gpu_bundle.sh makes loads where nothing is installed: its programs start in an
empty root with nothing but a C library, find their goldens beside themselves, and the filters of run_all.sh select
tests that exist.

  bundle_test.py BUILD        a build tree with CUDA

Exit status 77: this machine does not let the test make a root of its own.
"""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv.pop(1))
NO_GPU = 77
LIBC = ["ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
        "libresolv.so.2"]


def run_in(root, *command):
    """Runs a command in the root, as its root user, without a network."""
    enter = 'mount --rbind /proc "$0/proc" && exec chroot "$0" "$@"'
    inside = ["unshare", "--user", "--map-root-user", "--mount", "--net", "sh", "-c", enter, root] + list(command)
    return subprocess.run(inside, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=300)


def filters_of(script):
    """The (program, filter) pairs of the suites that run_all.sh runs."""
    with open(script, encoding="utf-8") as file:
        return re.findall(r"^run_suite \S+ \d+ (\S+) '([^']+)'", file.read(), re.M)


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = subprocess.run([os.path.join(SOURCE, "scripts/make_gpu_bundle.sh"), BUILD], cwd=SOURCE,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if made.returncode != 0:
            raise AssertionError(made.stdout[-3000:])
        print(made.stdout.splitlines()[-1])
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = cls.folder.name
        subprocess.run(["tar", "xzf", os.path.join(BUILD, "gpu_bundle.tar.gz"), "-C", cls.root], check=True)
        for folder in ("lib64", "lib/x86_64-linux-gnu", "proc", "tmp"):
            os.makedirs(os.path.join(cls.root, folder), exist_ok=True)
        for name in LIBC:
            found = glob.glob("/lib/x86_64-linux-gnu/" + name) + glob.glob("/lib64/" + name)
            to = "lib64" if name.startswith("ld-") else "lib/x86_64-linux-gnu"
            if found:
                shutil.copy(found[0], os.path.join(cls.root, to, name))
        # As run_all.sh does: by the bundle's own xz.
        unpacked = run_in(cls.root, "/gpu_bundle/xz/xz", "-d", "/gpu_bundle/programs.tar.xz")
        if unpacked.returncode != 0:
            raise AssertionError(unpacked.stdout[-3000:])
        bundle = os.path.join(cls.root, "gpu_bundle")
        subprocess.run(["tar", "xf", os.path.join(bundle, "programs.tar"), "-C", bundle], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_programs_load_where_nothing_is_installed(self):
        described = run_in(self.root, "/gpu_bundle/bin/gpu_bench", "--describe")
        self.assertIn(described.returncode, (0, NO_GPU), described.stdout)
        version = run_in(self.root, "/gpu_bundle/bin/tandem", "version")
        self.assertEqual(version.returncode, 0, version.stdout)
        self.assertIn("CUDA", version.stdout)

    def test_filters_select_tests(self):
        pairs = filters_of(os.path.join(self.root, "gpu_bundle/run_all.sh"))
        self.assertGreaterEqual(len(pairs), 4)
        for program, chosen in pairs:
            listed = run_in(self.root, "/gpu_bundle/bin/" + program, "--gtest_list_tests", "--gtest_filter=" + chosen)
            self.assertEqual(listed.returncode, 0, listed.stdout)
            tests = [line for line in listed.stdout.splitlines() if line.startswith("  ")]
            self.assertTrue(tests, f"{program} has no test that {chosen} selects")

    def test_goldens_lie_beside_the_programs(self):
        # The emulated device needs no GPU. Without its golden the test fails.
        ran = run_in(self.root, "/gpu_bundle/bin/golden_device_engine", "--gtest_filter=*/llama_fp8_tensor_Emulated")
        self.assertEqual(ran.returncode, 0, ran.stdout[-3000:])
        self.assertRegex(ran.stdout, r"\[  PASSED  \] [1-9]")


if __name__ == "__main__":
    probe = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "--net", "true"],
                           stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if probe.returncode != 0:
        print("skipped: no root of its own for this user:", probe.stderr.strip())
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
