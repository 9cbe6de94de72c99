#!/usr/bin/env python3
"""Goal: the last line of scripts/test.sh counts what ctest really ran, and its status cannot lie.

Runs summarise_tests.py on results that a real ctest writes for a small project with one test of every
outcome.
"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PASSING = "add_test([=[ok]=] true)\n"
ALL_OUTCOMES = PASSING + r"""
add_test([=[bytes]=] sh -c [=[printf '\377\033[0m<&>\001'; exit 1]=])
add_test([=[skipped]=] sh -c [=[echo SKIPPED: no tool; exit 77]=])
set_tests_properties([=[skipped]=] PROPERTIES SKIP_RETURN_CODE 77)
add_test([=[slow]=] sleep 60)
set_tests_properties([=[slow]=] PROPERTIES TIMEOUT 1)
add_test([=[no_program]=] /nonexistent/program)
add_test([=[disabled]=] true)
set_tests_properties([=[disabled]=] PROPERTIES DISABLED TRUE)
add_test([=[fixture]=] false)
set_tests_properties([=[fixture]=] PROPERTIES FIXTURES_SETUP f)
add_test([=[needs_fixture]=] true)
set_tests_properties([=[needs_fixture]=] PROPERTIES FIXTURES_REQUIRED f)
"""


def summarise(tests, *arguments):
    """Exit status and output lines for a ctest run over a CTestTestfile."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "CTestTestfile.cmake").write_text(tests, encoding="utf-8")
        results = Path(folder) / "results.xml"
        ctest = subprocess.run(
            ["ctest", "--test-dir", folder, *arguments, "--output-junit", results],
            capture_output=True,
            check=False,
        )
        summary = subprocess.run(
            [sys.executable, "-B", ROOT / "scripts/summarise_tests.py", results, str(ctest.returncode)],
            capture_output=True,
            text=True,
            check=False,
        )
        return summary.returncode, summary.stdout.splitlines()


class SummaryTest(unittest.TestCase):
    def test_counts_every_outcome(self):
        status, lines = summarise(ALL_OUTCOMES)
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "1 passed, 5 failed, 2 skipped")
        self.assertIn("skipped: skipped: no tool", lines)
        self.assertIn("skipped: disabled: disabled", lines)

    def test_success_needs_a_test_that_ran(self):
        self.assertEqual(summarise(PASSING), (0, ["1 passed, 0 failed, 0 skipped"]))
        status, lines = summarise(PASSING, "-R", "nothing_matches")
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "0 passed, 0 failed, 0 skipped")

    def test_only_skipped_tests_are_no_success(self):
        status, lines = summarise(ALL_OUTCOMES, "-R", "^skipped$")
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "0 passed, 0 failed, 1 skipped")

    def test_listing_tests_is_no_success(self):
        status, lines = summarise(PASSING, "--show-only")
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "0 passed, 0 failed, 0 skipped")


if __name__ == "__main__":
    unittest.main()
