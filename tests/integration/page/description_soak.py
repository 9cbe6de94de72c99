#!/usr/bin/env python3
"""Sends a router the requests that its own description at /openapi.json allows, and others that it does not, as
schemathesis makes them, and checks every answer: no 5xx, nothing that the description does not say, nothing accepted
that it forbids. Afterwards the cluster must be idle and end cleanly.

    pip install schemathesis==4.32.5
    description_soak.py --build build [--minutes 10] [--seed N]

The seed is printed; schemathesis prints a curl command for each failure.
"""
import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

from cluster import Cluster

CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
          "response_schema_conformance,negative_data_rejection,unsupported_method,allow_header_conformance")
IDLE_WITHIN_S = 60


def run(url, options, folder):
    program = shutil.which("schemathesis", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("schemathesis")
    if program is None:
        sys.exit("schemathesis is not installed: pip install schemathesis")
    return subprocess.run(
        [program, "run", f"{url}/openapi.json", "--url", url, "--phases", "coverage,fuzzing",
         "--max-time", str(60 * options.minutes), "--seed", str(options.seed), "--request-timeout", "60",
         "--continue-on-failure", "--checks", CHECKS],
        check=False, cwd=folder).returncode  # it keeps a cache where it runs


def await_idle(cluster):
    deadline = time.monotonic() + IDLE_WITHIN_S
    while True:
        load = json.loads(cluster.fetch("/load")[2])["server_load"]
        if load == 0:
            return
        if time.monotonic() > deadline:
            sys.exit(f"{load} requests are left {IDLE_WITHIN_S} s after the last client has gone")
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    cluster = Cluster(options.build, "--prefill=1", "--decode=2", "--kv-blocks=2048", "--local-prefill-tokens=0",
                      "--served-model-name=hash")
    with tempfile.TemporaryDirectory(prefix="tandem-soak-") as folder:
        failed = run(cluster.url, options, folder)
    await_idle(cluster)
    ended = cluster.stop()
    if ended != 0:
        sys.exit(f"the cluster ended with exit code {ended}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
