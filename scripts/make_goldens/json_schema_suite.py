#!/usr/bin/env python3
"""The JSON-Schema-Test-Suite's 2020-12 cases, one schema a line, for tests/golden/guided/json_schema_suite.jsonl.

    json_schema_suite.py FOLDER > tests/golden/guided/json_schema_suite.jsonl

FOLDER holds the suite; it comes in the source distribution of the Python package jsonschema, as json/.
"""
import json
import sys
from pathlib import Path

OPTIONAL = [f"format/{name}" for name in ("date", "time", "date-time", "duration", "uuid", "email", "hostname", "ipv4",
                                          "ipv6", "uri")] + ["ecmascript-regex", "non-bmp-regex", "bignum", "float-overflow"]


def main():
    folder = Path(sys.argv[1]) / "tests" / "draft2020-12"
    files = sorted(folder.glob("*.json")) + [folder / "optional" / f"{name}.json" for name in OPTIONAL]
    for file in files:
        # Its one case says that a metaschema may leave validation out.
        if file.stem == "vocabulary":
            continue
        for group in json.loads(file.read_text(encoding="utf-8")):
            schema = group["schema"]
            if isinstance(schema, dict):
                schema = {key: value for key, value in schema.items() if key != "$schema"}
            by_verdict = {verdict: [test["data"] for test in group["tests"] if test["valid"] == verdict]
                          for verdict in (True, False)}
            source = file.relative_to(folder).with_suffix("").as_posix()
            print(json.dumps({"from": f"{source}: {group['description']}", "schema": schema,
                              "valid": by_verdict[True], "invalid": by_verdict[False]}, separators=(",", ":")))


if __name__ == "__main__":
    main()
