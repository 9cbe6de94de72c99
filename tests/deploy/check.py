#!/usr/bin/env python3
"""Goal: what deploy/ says is valid for the tools that read it and true of the programs it runs.

Usage: check.py CHECK --source DIR --build DIR

  kustomize   base and overlays build, and the Kubernetes schemas accept every object (strictly)
  dockerfile  hadolint accepts the Dockerfile
  yaml        yamllint accepts every YAML file of deploy/
  shell       shellcheck accepts every shell script
  memory      what clients may make a router hold is less than its pod's memory limit
  secrets     what secrets.sh prints, or cert-manager makes, is what the pods mount; keys and TLS are on
  flags       every flag, configuration key and environment variable that the manifests use exists
              in the programs, and every port is one they were told to open
  systemd     systemd reads the units, the programs take the flags and files that the units give them,
              and every mistake planted in a unit is found
  package     the Debian package has its files, depends on the programs' libraries, and its program runs;
              `cmake --install` keeps what an operator changed and serves from any prefix
  compose     the programs take the commands that the image and the compose file give them, and what the
              compose file names exists
  libraries   the runtime image installs every shared library that the programs need
  checker     this file finds the mistakes that it is there to find

Exit status 0: fine; 1: a mistake; 77: a tool is missing (a mistake when CI=true).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import certificates
import flags as flag_check
import image_packages
import packages
import systemd
import tools

OVERLAYS = ("base", "overlays/two-by-three", "overlays/cert-manager")

# The oldest that deploy/kustomize/README.md promises, and the newest that the validator knows.
KUBERNETES_VERSIONS = ("1.30", "1.37.0")


def run(command, **options):
    return subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )


def passes(command):
    result = run(command)
    if result.returncode != 0:
        print(result.stdout)
    return result.returncode == 0


def build_overlay(context, folder):
    """The objects that `kubectl kustomize` makes of a folder."""
    kubectl = tools.kubectl(context.build)
    result = subprocess.run(
        [str(kubectl), "kustomize", str(folder)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0 or result.stderr:
        raise SystemExit(f"kubectl kustomize {folder}:\n{result.stderr}")
    return result.stdout


def validate(context, text, name):
    """Whether every object of the YAML stream has only fields that Kubernetes knows."""
    yaml = tools.module("yaml")
    validator = tools.program("kubernetes-validate")
    # Kubernetes' own kinds; certificates.py looks at cert-manager's.
    known = [item for item in yaml.safe_load_all(text) if not certificates.of_cert_manager(item)]
    text = yaml.safe_dump_all(known)
    path = context.build / "tests" / f"deploy-{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return all(
        [passes([validator, "--strict", "-k", version, path]) for version in KUBERNETES_VERSIONS]
    )


def lasting_jobs(text, yaml):
    """The jobs that stay after their end. An apply that changes one, as by a new image, is refused."""
    jobs = [each for each in yaml.safe_load_all(text) if each["kind"] == "Job"]
    return [job["metadata"]["name"] for job in jobs if "ttlSecondsAfterFinished" not in job["spec"]]


def check_kustomize(context):
    yaml = tools.module("yaml")
    good = True
    for overlay in OVERLAYS:
        text = build_overlay(context, context.source / "deploy/kustomize" / overlay)
        good &= validate(context, text, overlay.replace("/", "-"))
        for job in lasting_jobs(text, yaml):
            print(f"{overlay}: job {job} has no ttlSecondsAfterFinished")
            good = False
    return good


def check_dockerfile(context):
    hadolint = tools.program("hadolint")
    config = context.source / ".hadolint.yaml"
    return passes([hadolint, "--config", config, context.source / "deploy/docker/Dockerfile"])


def check_yaml(context):
    yamllint = tools.program("yamllint")
    config = context.source / ".yamllint.yaml"
    return passes([yamllint, "--strict", "-c", config, context.source / "deploy"])


def check_shell(context):
    scripts = sorted((context.source / "scripts").glob("*.sh"))
    scripts += sorted((context.source / "deploy").rglob("*.sh"))
    scripts.append(context.source / ".ci/run")
    return passes([tools.program("shellcheck"), *scripts])


def check_flags(context):
    yaml = tools.module("yaml")
    programs = {
        name: flag_check.ProgramFlags.of_binary(name, tools.built(context.build, name))
        for name in flag_check.PROGRAMS
    }
    mistakes = []
    for overlay in OVERLAYS:
        text = build_overlay(context, context.source / "deploy/kustomize" / overlay)
        for mistake in flag_check.mistakes(list(yaml.safe_load_all(text)), programs, yaml):
            mistakes.append(f"{overlay}: {mistake}")
    print("\n".join(mistakes))
    return not mistakes


# MiB beside what the configuration says: the port of gRPC (common/rpc/server.h) and kept responses
# (router/front_end/http/response_store.h).
ROUTER_FIXED_MIB = 1024 + 64


def mib(quantity):
    """A Kubernetes quantity of memory, such as 4Gi, in MiB."""
    return int(quantity[:-2]) * {"Mi": 1, "Gi": 1024}[quantity[-2:]]


def memory_mistake(pod, values):
    """What is wrong with a router's memory limit; None if nothing is."""
    missing = [key for key in ("request-bytes-max", "http-buffer-bytes") if key not in values]
    if missing:
        return f"the router's configuration lacks {missing}: its defaults are for a whole machine"
    # Batches over HTTP may hold as much as requests do.
    bounds = (2 * values["request-bytes-max"] + values["http-buffer-bytes"]) // 2**20 + ROUTER_FIXED_MIB
    resources = pod["containers"][0]["resources"]
    needed = bounds + mib(resources["requests"]["memory"])
    limit = mib(resources["limits"]["memory"])
    return f"a router may hold {needed} MiB, its limit is {limit} MiB" if needed > limit else None


def check_memory(context):
    yaml = tools.module("yaml")
    found = []
    for overlay in OVERLAYS:
        text = build_overlay(context, context.source / "deploy/kustomize" / overlay)
        for planted, is_true in ((text, True), (text.replace("memory: 4Gi", "memory: 3Gi"), False)):
            routers = [(pod, values) for name, pod, values in workloads(planted, yaml)[1] if name == "tandem-router"]
            said = [memory_mistake(pod, values) for pod, values in routers]
            if not said or any((one is None) != is_true for one in said):
                found.append(f"{overlay}: {said}")
    print("\n".join(found))
    return not found


def workloads(text, yaml):
    """All objects, and (program, pod, configuration) of each workload that runs a program of ours."""
    objects = list(yaml.safe_load_all(text))
    pods = []
    for _, pod in flag_check.pod_specs(objects):
        program = (pod["containers"][0].get("command") or [""])[0]
        if program in flag_check.PROGRAMS:
            pods.append((program, pod, flag_check.configuration(pod, objects, yaml)))
    return objects, pods


def printed_secrets(context, folder, yaml, *options):
    """name → data of the Secrets that secrets.sh prints."""
    environment = {
        **os.environ,
        "TANDEM": str(tools.built(context.build, "tandem").resolve()),
        "KUBECTL": str(tools.kubectl(context.build).resolve()),
    }
    result = subprocess.run(
        [str(context.source / "deploy/kustomize/secrets.sh"), *options, str(folder), "tandem"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if result.returncode != 0:
        raise SystemExit(f"secrets.sh:\n{result.stderr}")
    return {item["metadata"]["name"]: item["data"] for item in yaml.safe_load_all(result.stdout) if item}


def ignored(context, folder):
    """Whether Git and Docker leave a folder at the root out."""
    lines = [
        (context.source / name).read_text(encoding="utf-8").split()
        for name in (".gitignore", ".dockerignore")
    ]
    return f"/{folder}/" in lines[0] and folder in lines[1]


def check_secrets(context):
    yaml = tools.module("yaml")
    found = []
    for name in ("tandem-secrets", "certs"):
        if not ignored(context, name):
            found.append(f"{name}/, which keeps the authority's key, is not in both ignore files")
    with tempfile.TemporaryDirectory() as folder:
        first = printed_secrets(context, folder, yaml)
        again = printed_secrets(context, folder, yaml)
        without = printed_secrets(context, folder, yaml, "--no-certificates")
    if without != {name: first[name] for name in ("tandem-fleet", "tandem-keys")}:
        found.append(f"secrets.sh --no-certificates prints {sorted(without)}, or others than before")
    if first["tandem-fleet"] != again["tandem-fleet"] or first["tandem-keys"] != again["tandem-keys"]:
        found.append("a second run of secrets.sh draws another secret or other keys")
    if first["tandem-router-tls"]["tls.crt"] == again["tandem-router-tls"]["tls.crt"]:
        found.append("a second run of secrets.sh renews no certificate")
    if first["tandem-router-tls"]["ca.crt"] != again["tandem-router-tls"]["ca.crt"]:
        found.append("a second run of secrets.sh makes another authority")
    secrets = {name: set(data) for name, data in first.items()}
    for overlay in OVERLAYS:
        text = build_overlay(context, context.source / "deploy/kustomize" / overlay)
        objects, pods = workloads(text, yaml)
        found += [f"{overlay}: {said}" for said in certificates.missing_secrets(pods, secrets)]
        for program, _, values in pods:
            found += [f"{overlay}: {said}" for said in certificates.plaintext(program, values)]
    # The last overlay is cert-manager's.
    found += certificates.cert_manager_mistakes(objects, pods)
    for before, after, expected in (
        ("/tandem/decode", "/tandem/router", "not the role decode"),
        ("renewBefore", "renewBefor", "renewBefor"),
        ("secretName: tandem-prefill-tls", "secretName: tandem-prefil-tls", "tandem-prefill-node"),
        ("isCA: true", "isCA: false", "no certificate of an authority"),
    ):
        planted, pods = workloads(text.replace(before, after, 1), yaml)
        said = list(certificates.cert_manager_mistakes(planted, pods))
        said += certificates.missing_secrets(pods, secrets)
        if not any(expected in one for one in said):
            found.append(f"planted {after}: found only {said}")
    print("\n".join(found))
    return not found


def check_systemd(context):
    systemd_analyze = tools.program("systemd-analyze")
    binaries = tools.built(context.build, "tandem-router").parent
    for name in flag_check.PROGRAMS:
        tools.built(context.build, name)
    units = sorted((context.source / "deploy/systemd").glob("*.service"))
    plants = (
        ("NoNewPrivileges=", "NoNewPrivilegess=", "NoNewPrivilegess"),
        ("After=network-online.target", "After=network-online.tarjet", "network-online.tarjet"),
        ("--config", "--confg", "confg"),
        (".yaml", ".yml", "yml"),
        ("StartLimitIntervalSec=0", "StartLimitBurst=5", "StartLimitIntervalSec"),
    )
    # Routers name no order.
    order = ("Before=tandem-router", "After=tandem-router", "without Before=")
    with tempfile.TemporaryDirectory() as folder:
        found = systemd.mistakes(systemd_analyze, units, binaries, Path(folder))
        for unit in units:
            for before, after, expected in plants + ((order,) if "-node@" in unit.name else ()):
                planted = Path(folder) / "planted" / unit.name
                shutil.rmtree(planted.parent, ignore_errors=True)
                shutil.copytree(unit.parent, planted.parent)
                planted.write_text(unit.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")
                said = systemd.mistakes(systemd_analyze, [planted], binaries, Path(folder))
                if not any(expected in mistake for mistake in said):
                    found.append(f"planted {after} in {unit.name}, found only {said}")
    print("\n".join(found))
    return bool(units) and not found


def check_package(context):
    libraries = set()
    for name in flag_check.PROGRAMS + ("tandem",):
        libraries |= {package for _, package in image_packages.needed_by(tools.built(context.build, name))}
    with tempfile.TemporaryDirectory() as folder:
        package = packages.make(context.build, folder)
        found = packages.mistakes(package, folder, libraries)
        if not packages.mistakes(package, Path(folder) / "planted", libraries | {"libplanted"}):
            found.append("a missing dependency was not found")
        found += packages.installed_mistakes(context.build.resolve(), folder)
    listed = (context.source / "scripts/packages.txt").read_text(encoding="utf-8")
    found += packages.uninstalled(listed)
    if not packages.uninstalled(listed.replace("\nfile\n", "\n")):
        found.append("a list of packages without file was accepted")
    print("\n".join(found))
    return not found


def check_compose(context):
    yaml = tools.module("yaml")
    binaries = tools.built(context.build, "tandem").parent
    dockerfile = (context.source / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    text = (context.source / "deploy/compose/compose.yaml").read_text(encoding="utf-8")

    def mistakes(text):
        compose = yaml.safe_load(text)
        refused = [packages.refused(*command, binaries) for command in packages.commands(dockerfile, compose)]
        return [said for said in refused if said] + packages.references(compose)

    found = mistakes(text)
    for before, after, expected in (
        ("--transport", "--transpot", "transpot"),
        ("router:50052", "roter:50052", "roter"),
        ("- models:", "- modles:", "modles"),
        ("- --weight-cache=off", "- --weight-cache=auto", "decode-1 can keep packed weights nowhere"),
        ("      decode-1:\n        condition: service_started\n", "", "router does not depend on decode-1"),
    ):
        if not any(expected in said for said in mistakes(text.replace(before, after))):
            found.append(f"planted {after} for {before}: not found")
    print("\n".join(found))
    return not found


def check_libraries(context):
    dockerfile = (context.source / "deploy/docker/Dockerfile").read_text(encoding="utf-8")
    installed = image_packages.installed_by(dockerfile)
    good = True
    for name in flag_check.PROGRAMS + ("tandem",):
        for library, package in image_packages.needed_by(tools.built(context.build, name)):
            if package not in installed:
                print(f"{name} needs {library} of {package}: not in the Dockerfile's runtime stage")
                good = False
    return good


def check_checker(context):
    """Plants a mistake of each kind in the true manifests and expects each to be found."""
    yaml = tools.module("yaml")
    text = build_overlay(context, context.source / "deploy/kustomize/base")
    good = True
    if validate(context, text.replace("periodSeconds:", "periodSecond:"), "planted"):
        print("an unknown field of a probe was accepted")
        good = False
    plants = (
        ("kv-blocks:", "kv-blokcs:", "kv-blokcs"),
        ("- --config", "- --confg", "--confg"),
        ("TANDEM_DECODE_NODE_ID", "TANDEM_DECODE_NODE_IDD", "TANDEM_DECODE_NODE_IDD"),
        ("port: 50061", "port: 50069", "50069"),
        ("weight-cache: 'off'", "weight-cache: auto", "can keep packed weights nowhere"),
    )
    programs = flag_check.example_programs(list(yaml.safe_load_all(text)), yaml)
    true_mistakes = flag_check.mistakes(list(yaml.safe_load_all(text)), programs, yaml)
    if true_mistakes:
        print("found in manifests without a planted mistake:", *true_mistakes, sep="\n  ")
        good = False
    for before, after, expected in plants:
        if before not in text:
            print(f"{before!r} is not in the manifests any more: plant another mistake")
            good = False
        objects = list(yaml.safe_load_all(text.replace(before, after)))
        found = flag_check.mistakes(objects, programs, yaml)
        if not any(expected in mistake for mistake in found):
            print(f"planted {after!r}, found only {found}")
            good = False
    return good


def main():
    checks = {
        "kustomize": check_kustomize,
        "dockerfile": check_dockerfile,
        "yaml": check_yaml,
        "shell": check_shell,
        "memory": check_memory,
        "secrets": check_secrets,
        "flags": check_flags,
        "systemd": check_systemd,
        "package": check_package,
        "compose": check_compose,
        "libraries": check_libraries,
        "checker": check_checker,
    }
    parser = argparse.ArgumentParser()
    parser.add_argument("check", choices=checks)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--build", type=Path, required=True)
    context = parser.parse_args()
    tools.use_test_python(sys.argv)
    try:
        return 0 if checks[context.check](context) else 1
    except tools.Missing as missing:
        print(f"SKIPPED: {missing}; scripts/test.sh installs what tests need")
        return 1 if os.environ.get("CI") == "true" else 77


if __name__ == "__main__":
    sys.exit(main())
