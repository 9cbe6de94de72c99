#!/usr/bin/env python3
"""Goal: install_packages.sh --check lists what is missing of the packages that it is asked for, whatever the order of
its arguments, and refuses arguments that it does not know. It installs nothing here."""
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/install_packages.sh"
LINES = (ROOT / "scripts/packages.txt").read_text().splitlines()
NEEDED = sorted(line for line in LINES if line and "#" not in line)
FOR_TESTS = sorted(line.split("#")[0].strip() for line in LINES if line.endswith("# tests"))


class InstallPackages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def run_script(self, *arguments, installed):
        """With a dpkg-query that knows `installed`, and an apt-get that fails."""
        tools = pathlib.Path(self.folder.name)
        known = "".join(f"installed {package}\\n" for package in installed)
        for name, body in [("dpkg-query", f"printf '{known}'"), ("apt-get", "exit 1")]:
            (tools / name).write_text(f"#!/bin/sh\n{body}\n")
            (tools / name).chmod(0o755)
        ran = subprocess.run([SCRIPT, *arguments], text=True, capture_output=True,
                             env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"})
        return ran.returncode, ran.stdout.split(), ran.stderr

    def test_check_lists_what_is_missing(self):
        self.assertTrue(NEEDED and FOR_TESTS)
        self.assertEqual(self.run_script("--check", installed=NEEDED)[:2], (0, []))
        self.assertEqual(self.run_script("--check", installed=NEEDED[1:])[:2], (1, NEEDED[:1]))
        for arguments in [("--check", "--tests"), ("--tests", "--check")]:
            self.assertEqual(self.run_script(*arguments, installed=NEEDED)[:2], (1, FOR_TESTS), arguments)
            self.assertEqual(self.run_script(*arguments, installed=NEEDED + FOR_TESTS)[:2], (0, []), arguments)

    def test_unknown_arguments_are_refused(self):
        for arguments in [("--chek",), ("--check", "--test"), ("--tests", "all")]:
            code, _, error = self.run_script(*arguments, installed=NEEDED)
            self.assertEqual(code, 1)
            self.assertIn(f"unknown argument {arguments[-1]}", error)


if __name__ == "__main__":
    unittest.main()
