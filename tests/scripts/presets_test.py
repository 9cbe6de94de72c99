#!/usr/bin/env python3
"""Goal: every preset for sanitizers and fuzzers configures, and compiles with the sanitizers that it names.

Nothing else does this before someone needs such a build. Configures in a scratch folder and builds nothing.
Of presets that share a folder, each undoes what another one set there.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = 77


def all_presets():
    """{name: (its folder, its cache variables)}, what they inherit included."""
    presets = {p["name"]: p for p in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]}

    def inherited(name):
        preset = presets[name]
        folder, variables = inherited(preset["inherits"]) if "inherits" in preset else (None, {})
        return preset.get("binaryDir", folder), {**variables, **preset.get("cacheVariables", {})}

    return {name: inherited(name) for name in presets}


def sanitizer_presets():
    """{name: its cache variables} of the presets that name sanitizers."""
    return {name: variables for name, (_, variables) in all_presets().items() if "TANDEM_SANITIZE" in variables}


class PresetsTest(unittest.TestCase):
    def test_there_are_some(self):
        self.assertLessEqual({"asan", "tsan", "fuzz", "fuzz-fast"}, set(sanitizer_presets()))

    def test_presets_of_one_folder_set_the_same_variables(self):
        first = {}
        for name, (folder, variables) in all_presets().items():
            if folder:
                with self.subTest(preset=name):
                    self.assertEqual(set(variables), first.setdefault(folder, set(variables)))
        self.assertGreater(len(first), 3)

    def test_each_configures_with_its_sanitizers(self):
        scratch = Path(tempfile.mkdtemp(prefix="presets-test-"))
        self.addCleanup(shutil.rmtree, scratch)
        runs = {}
        for name in sanitizer_presets():
            command = ["cmake", "--preset", name, "-B", scratch / name, "-DTANDEM_CUDA=OFF"]
            runs[name] = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        outputs = {name: run.communicate()[0] for name, run in runs.items()}
        for name, variables in sanitizer_presets().items():
            with self.subTest(preset=name):
                self.assertEqual(runs[name].returncode, 0, outputs[name])
                rules = (scratch / name / "build.ninja").read_text(encoding="utf-8")
                self.assertIn(f"-fsanitize={variables['TANDEM_SANITIZE']} ", rules)
                fuzzing = variables.get("TANDEM_FUZZ") == "ON"
                self.assertEqual("-fsanitize=fuzzer" in rules, fuzzing)
                self.assertIn("gguf_fuzz", rules)


if __name__ == "__main__":
    if shutil.which("clang++-14") is None and os.environ.get("CI") != "true":
        print("SKIPPED: clang++-14 is not installed (scripts/install_packages.sh installs it)")
        sys.exit(SKIPPED)
    unittest.main()
