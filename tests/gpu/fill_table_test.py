#!/usr/bin/env python3
"""Goal: each cell of the tables in docs/GPU.md gets the figure of its own case and nothing else changes; and every row
and column of these tables shows a result that the benchmark has.

  fill_table_test.py GPU_BENCH
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import fill_table

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent.parent / "docs/GPU.md"
BENCH = sys.argv.pop(1)
# In the form that gpu_bench writes; the figures are invented.
RESULTS = {"device": "NVIDIA Test", "software": "CUDA 13.0, driver for CUDA 13.0", "kernels": "cuda-test", "rows": [
    {"name": "copy", "us": 2000.04, "gbs": 4295.0},
    {"name": "decode bf16 1 x 65536", "us": 58.24, "gbs": 1152.6, "of_copy": 26.84},
    {"name": "decode bf16 1 x 65536 unsplit", "us": 2300.6},
    {"name": "gemm bf16 16 x 4096 x 4096", "us": 9.96, "tflops": 54.4, "of_copy": 88.0},
]}
SMALL = """text
<!-- measured -->
Measured on nothing yet.

| Decode | µs | % of copy | unsplit, µs |
|---|---:|---:|---:|
| decode bf16 1 x 65536 | | 99 | |

| Product | µs | TFLOP/s | cuBLASLt, µs |
|---|---|---|---|
| gemm bf16 16 x 4096 x 4096 | | | 7.0 |
<!-- end of measured -->
| not | ours |
"""
FILLED = """text
<!-- measured -->
Measured on NVIDIA Test (CUDA 13.0, driver for CUDA 13.0), kernels `cuda-test`.

| Decode | µs | % of copy | unsplit, µs |
|---|---:|---:|---:|
| decode bf16 1 x 65536 | 58.2 | 27 | 2300.6 |

| Product | µs | TFLOP/s | cuBLASLt, µs |
|---|---|---|---|
| gemm bf16 16 x 4096 x 4096 | 10.0 | 54 |  |
<!-- end of measured -->
| not | ours |
"""


class FillTableTest(unittest.TestCase):
    def test_each_cell_gets_the_figure_of_its_case(self):
        self.assertEqual(fill_table.fill(SMALL, RESULTS), FILLED)
        self.assertEqual(fill_table.fill(FILLED, RESULTS), FILLED)

    def test_a_row_without_a_result_is_named(self):
        for name, other in (("1 x 65536", "1 x 65537"), ("16 x 4096 x 4096", "17 x 4096 x 4096")):
            with self.assertRaisesRegex(fill_table.TableError, other):
                fill_table.fill(SMALL.replace(name, other), RESULTS)

    def test_an_unknown_heading_and_missing_marks_are_named(self):
        with self.assertRaisesRegex(fill_table.TableError, "unsplit, ms"):
            fill_table.fill(SMALL.replace("unsplit, µs", "unsplit, ms"), RESULTS)
        with self.assertRaisesRegex(fill_table.TableError, "expected one of each"):
            fill_table.fill(SMALL.replace("<!-- measured -->", ""), RESULTS)

    def test_the_page_shows_only_results_of_the_benchmark(self):
        listed = subprocess.run([BENCH, "--list"], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                text=True).stdout.splitlines()
        self.assertGreater(len(listed), 50)
        self.assertEqual(len(set(listed)), len(listed))
        rows = [{"name": name, "us": 1.0} for name in listed]
        before = PAGE.read_text(encoding="utf-8")
        filled = fill_table.fill(before, dict(RESULTS, rows=rows))
        headings, filled_rows = [], 0
        for line in fill_table.split_page(filled)[1].splitlines():
            cells = fill_table.cells_of(line)
            if "µs" in cells:
                headings = cells
            elif line.startswith("| "):
                filled_rows += 1
                for heading, cell in zip(headings, cells):
                    self.assertEqual(cell == "1.0", heading.endswith("µs"), line)
        self.assertEqual(filled_rows, 70)

    def test_the_program_rewrites_the_page(self):
        with tempfile.TemporaryDirectory() as folder:
            page, results = pathlib.Path(folder, "page.md"), pathlib.Path(folder, "results.json")
            page.write_text(SMALL, encoding="utf-8")
            results.write_text(json.dumps(RESULTS), encoding="utf-8")
            command = [sys.executable, "-B", HERE / "fill_table.py", results, page]
            subprocess.run(command, check=True)
            self.assertEqual(page.read_text(encoding="utf-8"), FILLED)
            results.write_text(json.dumps(dict(RESULTS, rows=[])), encoding="utf-8")
            failed = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
            self.assertNotEqual(failed.returncode, 0)
            self.assertIn("row `decode bf16 1 x 65536`", failed.stderr)
            self.assertEqual(page.read_text(encoding="utf-8"), FILLED)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
