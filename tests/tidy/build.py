"""Rules format and not-built: clang-format leaves every source as it is, and some target compiles it."""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess

from tree import Finding


FILES_PER_RUN = 50  # of clang-format


def run_format(tool, root, paths):
    return subprocess.run([tool, "--dry-run", "-Werror", *paths], cwd=root, capture_output=True, text=True,
                          check=False)


def check_format(root, paths):
    """Findings of clang-format, one a file, or None when there is none to run."""
    tool = shutil.which("clang-format-14")
    if tool is None:
        return None
    findings = []
    parts = [paths[begin:begin + FILES_PER_RUN] for begin in range(0, len(paths), FILES_PER_RUN)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda part: run_format(tool, root, part), parts))
    for part, result in zip(parts, results):
        seen = set()
        for match in re.finditer(r"^([^:\n]+):(\d+):\d+: error: ", result.stderr, re.M):
            if match.group(1) not in seen:
                seen.add(match.group(1))
                findings.append(Finding(match.group(1), int(match.group(2)), "format", "run clang-format-14 -i"))
        if result.returncode != 0 and not seen:
            findings.append(Finding(part[0], 1, "format", result.stderr.strip() or "clang-format-14 failed"))
    return findings


def check_built(root, paths, compile_commands):
    """Every .cc is compiled by some target; every header is included by some file or stands beside its .cc."""
    compiled = set()
    for entry in json.loads(compile_commands.read_text()):
        file = pathlib.Path(entry["directory"], entry["file"]).resolve()
        files = [file]
        if file.name.startswith("unity_") and file.exists():  # includes several sources (cmake/Tandem.cmake)
            files = [root / path for path in re.findall(r'#include "([^"]+)"', file.read_text(encoding="utf-8"))]
        for source in files:
            if source.is_relative_to(root):
                compiled.add(source.relative_to(root).as_posix())
    included = set()
    for path in paths:
        text = (root / path).read_text(encoding="utf-8", errors="replace")
        for target in re.findall(r'#\s*include\s+"([^"]+)"', text):
            included.update((target, (pathlib.PurePosixPath(path).parent / target).as_posix()))
    for path in paths:
        if path.endswith(".cc") and path not in compiled and not path.startswith("tests/fuzz/"):
            yield Finding(path, 1, "not-built", "no target compiles this file")
        if path.endswith(".h") and path not in included:
            yield Finding(path, 1, "not-built", "no file includes this header")
