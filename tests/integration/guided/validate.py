#!/usr/bin/env python3
"""Goal: what the masks let through satisfies the schema, by the judgement of another validator.

Random answers under every schema of the public suite that compiles, and under schemas of the kind that
clients send, are parsed by Python's json and validated by Python's jsonschema.
"""
import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path

SKIPPED = 77

# Several keywords at once, nesting, recursion.
MORE = [
    {"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 12},
                                      "age": {"type": "integer", "minimum": 0, "maximum": 130},
                                      "mail": {"type": "string", "format": "email"},
                                      "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,5}$"},
                                               "minItems": 1, "maxItems": 4}},
     "required": ["name", "age"], "additionalProperties": False},
    {"$defs": {"node": {"type": "object", "properties": {"value": {"type": "number"},
                                                         "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                        "required": ["value", "next"], "additionalProperties": False}}, "$ref": "#/$defs/node"},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number", "exclusiveMinimum": 0}},
                "required": ["kind", "r"], "additionalProperties": False},
               {"type": "object", "properties": {"kind": {"const": "box"}, "sides": {"type": "array", "prefixItems": [
                   {"type": "integer"}, {"type": "integer"}], "items": False, "minItems": 2}},
                "required": ["kind", "sides"], "additionalProperties": False}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": -5}}, "required": ["a"]},
               {"properties": {"a": {"maximum": 7.5}, "b": {"enum": [1, "x", None, [1, {"y": 2}]]}}, "required": ["b"]}],
     "maxProperties": 3},
    {"type": "object", "patternProperties": {"^x-": {"type": "integer"}, "y$": {"minimum": 10}},
     "additionalProperties": {"type": "boolean"}, "propertyNames": {"maxLength": 6}, "minProperties": 1},
    {"type": "number", "minimum": -12.75, "exclusiveMaximum": 0.001},
    {"type": "integer", "multipleOf": 7, "minimum": -100, "maximum": 1000},
    {"type": "string", "pattern": "[0-9]+[^0-9]", "minLength": 4, "maxLength": 9},
    {"type": "array", "items": {"type": ["string", "null", "boolean"], "maxLength": 3}, "minItems": 2, "maxItems": 5},
    {"type": "string", "format": "date-time"}, {"type": "string", "format": "date"}, {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "ipv6"}, {"type": "string", "format": "uuid"}, {"type": "string", "format": "email"},
    {"type": "object"}, {}, {"type": "array"},
]


def use_test_python():
    """Continues under the interpreter that has the test packages, if that is another one."""
    wanted = os.environ.get("TANDEM_TEST_PYTHON")
    if wanted and os.path.exists(wanted) and Path(wanted).parent != Path(sys.executable).parent:
        os.execv(wanted, [wanted, "-B", *sys.argv])


def suite(source):
    """The suite's schemas, without those whose patterns Python's re reads in another way than ECMA-262."""
    with open(source / "tests/golden/guided/json_schema_suite.jsonl", encoding="utf-8") as lines:
        groups = [json.loads(line) for line in lines]
    return [group["schema"] for group in groups if not group["from"].startswith("optional/ecmascript-regex")]


def main():
    use_test_python()
    try:
        import jsonschema
        checked = jsonschema.FormatChecker(formats=("date", "email", "ipv4", "ipv6", "uuid"))
    except ImportError:
        print("SKIPPED: the Python package jsonschema is not installed; scripts/test.sh installs it")
        return 1 if os.environ.get("CI") == "true" else SKIPPED
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walk", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print("seed", options.seed)
    schemas = suite(options.source) + MORE
    lines = "".join(json.dumps(schema) + "\n" for schema in schemas)
    run = subprocess.run([options.walk, "12", str(options.seed)], input=lines, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        print(run.stderr)
        return 1
    valid = refused = cut = failures = 0
    for schema, line in zip(schemas, run.stdout.rstrip("\n").split("\n"), strict=True):
        result = json.loads(line)
        if "error" in result:
            refused += 1
            if schema in MORE:
                failures += 1
                print("refused:", json.dumps(schema), result["error"])
            continue
        cut += result["cut"]
        validator = jsonschema.Draft202012Validator(schema, format_checker=checked)
        for answer in result["answers"]:
            try:
                validator.validate(json.loads(answer))
                valid += 1
            except (ValueError, jsonschema.ValidationError) as error:
                failures += 1
                print("schema", json.dumps(schema), "\nanswer", answer, "\n", str(error).splitlines()[0])
    print(f"{len(schemas)} schemas, {refused} refused; {valid} answers valid, {cut} cut off, {failures} failures")
    return 1 if failures or valid < 1500 or cut > valid / 4 else 0


if __name__ == "__main__":
    sys.exit(main())
