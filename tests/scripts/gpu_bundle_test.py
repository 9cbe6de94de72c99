#!/usr/bin/env python3
"""Goal: make_gpu_bundle.sh takes only a build folder that compiles CUDA kernels, whatever chose them or left them out.

Its tools are stand-ins. The one for ninja fails, so nothing is built or packed."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/make_gpu_bundle.sh"
FOUND = "TANDEM_NVCC:FILEPATH=/usr/local/cuda/bin/nvcc\n"
NOT_FOUND = "TANDEM_NVCC:FILEPATH=TANDEM_NVCC-NOTFOUND\n"


class GpuBundleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpu-bundle-test-")
        self.addCleanup(folder.cleanup)
        self.tools, self.build = Path(folder.name) / "bin", Path(folder.name) / "build"
        self.tools.mkdir()
        self.build.mkdir()
        (self.build / "build.ninja").touch()
        for name in ("cmake", "ninja", "patchelf", "strip", "ldd", "xz"):
            (self.tools / name).write_text(f"#!/bin/sh\necho {name} ran\nexit 1\n", encoding="utf-8")
            (self.tools / name).chmod(0o755)

    def make(self, cache):
        """What the script says of a folder with these lines in its CMakeCache.txt."""
        (self.build / "CMakeCache.txt").write_text(cache, encoding="utf-8")
        done = subprocess.run(
            [SCRIPT, self.build],
            env={**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertNotEqual(done.returncode, 0)
        return done.stdout + done.stderr

    def test_a_folder_with_kernels_is_built(self):
        for choice in ("ON", "AUTO"):
            self.assertEqual(self.make(f"TANDEM_CUDA:STRING={choice}\n{FOUND}"), "ninja ran\n")

    def test_a_folder_without_kernels_is_refused(self):
        # Where CUDA is left out, nvcc may still be known from before.
        for cache in ("OFF\n", "SKIP\n", f"SKIP\n{FOUND}", "AUTO\n", f"AUTO\n{NOT_FOUND}"):
            with self.subTest(cache=cache):
                said = self.make(f"TANDEM_CUDA:STRING={cache}")
                self.assertIn("was configured without CUDA", said)
                self.assertNotIn("ninja ran", said)


if __name__ == "__main__":
    unittest.main()
