#!/usr/bin/env python3
"""Goal: run_all.sh tells "cannot load" from "no GPU", fails suites that prove nothing, and reports in order."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "run_all.sh"
SUITES = ("differential_device", "golden_device_engine", "unit_gemm_tiles")
ORDER = ["describe", "gemm_and_attention", "bench", "engine", "operators", "gemm_tiles",
         "sanitizer_memcheck", "sanitizer_racecheck"]


class RunAllTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("programs", "tools", "out"):
            (self.root / name).mkdir()
        self.write("programs/gpu_bench", "echo a GPU")
        for suite in SUITES:
            self.write_suite(suite, "echo '[       OK ] Suite.Test (1 ms)'")
        self.write("tools/compute-sanitizer", "exit 0")

    def write(self, path, body):
        (self.root / path).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (self.root / path).chmod(0o755)

    def write_suite(self, name, body):
        """A program with one test, Suite.Test, which `body` runs."""
        self.write(f"programs/{name}", f'case "$1" in --gtest_list_tests) echo "Suite."; echo "  Test";; *) {body};; esac')

    def run_script(self):
        environment = dict(os.environ, OUT=str(self.root / "out"),
                           PATH=f"{self.root / 'tools'}:{os.environ['PATH']}")
        status = subprocess.run([SCRIPT, self.root / "programs"], env=environment, check=False,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
        rows = json.loads((self.root / "out/results.json").read_text(encoding="utf-8"))
        return status, {row["name"]: row["outcome"] for row in rows}

    def test_runs_everything_in_order(self):
        status, outcomes = self.run_script()
        self.assertEqual((status, list(outcomes)), (0, ORDER))

    def test_no_gpu_is_a_skip(self):
        self.write("programs/gpu_bench", "exit 77")
        self.assertEqual(self.run_script(), (77, {"describe": "no GPU"}))

    def test_a_program_that_cannot_load_is_a_failure(self):
        for code in (1, 126, 127, 139):
            self.write("programs/gpu_bench", f"exit {code}")
            self.assertEqual(self.run_script(), (1, {"describe": f"cannot load ({code})"}))

    def test_a_suite_without_a_passed_test_fails_and_the_rest_still_runs(self):
        self.write_suite("golden_device_engine", "echo '[  SKIPPED ] Suite.Test (1 ms)'")
        status, outcomes = self.run_script()
        self.assertEqual((status, outcomes["engine"], list(outcomes)), (1, "none passed", ORDER))

    def test_a_missing_suite_fails(self):
        (self.root / "programs/unit_gemm_tiles").unlink()
        status, outcomes = self.run_script()
        self.assertEqual((status, outcomes["gemm_tiles"]), (1, "missing"))

    def test_a_failing_suite_fails(self):
        self.write_suite("differential_device", "echo '[  FAILED  ] Suite.Test (1 ms)'; exit 1")
        status, outcomes = self.run_script()
        self.assertEqual((status, outcomes["operators"]), (1, "failed (1)"))
        self.assertEqual((self.root / "out/operators.failed").read_text(encoding="utf-8"), "Suite.Test (1)\n")

    def test_a_program_that_ends_badly_after_its_tests_fails(self):
        self.write_suite("unit_gemm_tiles", "echo '[       OK ] Suite.Test (1 ms)'; exit 139")
        status, outcomes = self.run_script()
        self.assertEqual((status, outcomes["gemm_tiles"]), (1, "failed (1)"))

    def test_a_test_that_passes_alone_only_fails_its_suite(self):
        self.write_suite("unit_gemm_tiles", 'test -z "$GTEST_TOTAL_SHARDS" && echo "[       OK ] Suite.Test (1 ms)"')
        status, outcomes = self.run_script()
        self.assertEqual((status, outcomes["gemm_tiles"]), (1, "failed (1)"))
        self.assertEqual((self.root / "out/gemm_tiles.failed").read_text(encoding="utf-8"), "")

    def test_the_sanitizer_never_decides(self):
        self.write("tools/compute-sanitizer", "exit 9")
        status, outcomes = self.run_script()
        self.assertEqual((status, outcomes["sanitizer_racecheck"]), (0, "advisory (9)"))


if __name__ == "__main__":
    unittest.main()
