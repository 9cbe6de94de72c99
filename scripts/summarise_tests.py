#!/usr/bin/env python3
"""Prints why tests were skipped, and how many passed, failed and were skipped.

Usage: summarise_tests.py RESULTS.xml CTEST_STATUS

RESULTS.xml is what `ctest --output-junit` wrote, CTEST_STATUS its exit status. A test that could
not be run (its program is missing, a fixture failed) counts as failed; only a test that said so
itself, or is disabled, counts as skipped. Exit status: 0 when tests ran and none failed.
"""

import sys
import xml.etree.ElementTree as ElementTree


def outcome(case):
    status = case.get("status")
    if status == "run":
        return "passed"
    if status == "disabled":
        return "skipped"
    skipped = case.find("skipped")
    if status == "notrun" and skipped is not None and skipped.get("message", "").startswith("SKIP_"):
        return "skipped"
    return "failed"


def skip_reason(case):
    """What the test said when it skipped: after gtest's `Skipped`, or after `SKIPPED:`."""
    lines = [line.strip() for line in (case.findtext("system-out") or "").splitlines()]
    for index, line in enumerate(lines):
        if line.startswith("SKIPPED:"):
            return line[len("SKIPPED:") :].strip()
        if line.endswith(": Skipped") and index + 1 < len(lines):
            return lines[index + 1]
    return "no reason given" if case.get("status") != "disabled" else "disabled"


def main(arguments):
    path, ctest_status = arguments[0], int(arguments[1])
    try:
        cases = ElementTree.parse(path).getroot().findall("testcase")
    except FileNotFoundError:
        cases = []  # ctest ran nothing
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in cases:
        result = outcome(case)
        counts[result] += 1
        if result == "skipped":
            print(f"skipped: {case.get('name')}: {skip_reason(case)}")
    ran = counts["passed"] + counts["failed"]
    if ran == 0:
        print("no test ran")
    elif ctest_status != 0 and counts["failed"] == 0:
        print(f"ctest ended with status {ctest_status}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 0 if ran > 0 and counts["failed"] == 0 and ctest_status == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
