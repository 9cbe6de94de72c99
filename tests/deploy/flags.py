"""Compares what Kubernetes objects tell the programs with what the programs know."""

import re
import subprocess

PROGRAMS = ("tandem-router", "tandem-prefill-node", "tandem-decode-node")

# Read by every program, without being a field of a configuration.
COMMON_ENVIRONMENT = {"TANDEM_MODELS", "XDG_CACHE_HOME"}

# Flags of every program, beside its fields.
COMMON_FLAGS = {"config", "help", "version", "print-config"}


class ProgramFlags:
    """A program's flags; keys of its file and names of its environment follow from them."""

    def __init__(self, name, flags):
        self.name = name
        self.flags = set(flags) - COMMON_FLAGS

    @staticmethod
    def of_binary(name, path):
        result = subprocess.run(
            [str(path), "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        names = re.findall(r"^\s*--([a-z][a-z0-9-]*)", result.stdout, re.MULTILINE)
        if result.returncode != 0 or not names:
            raise SystemExit(f"{path} --help: status {result.returncode}, no flags\n{result.stderr}")
        return ProgramFlags(name, names)

    def environment(self):
        prefix = self.name.upper().replace("-", "_")
        return {f"{prefix}_{flag.upper().replace('-', '_')}" for flag in self.flags}


def port_of(address):
    return int(str(address).rsplit(":", 1)[1])


def pod_specs(objects):
    for item in objects:
        template = (item.get("spec") or {}).get("template")
        if template:
            yield item["metadata"]["name"], template["spec"]


def configuration(pod, objects, yaml):
    """The configuration file that a pod mounts, as a map."""
    maps = {item["metadata"]["name"]: item for item in objects if item["kind"] == "ConfigMap"}
    for volume in pod.get("volumes", ()):
        if "configMap" in volume:
            return yaml.safe_load(maps[volume["configMap"]["name"]]["data"]["config.yaml"])
    return {}


def packed_weights_mistakes(container, values, program):
    """Whether a node tries to keep packed weights where it cannot write, and warns of it at each start."""
    if not program.name.endswith("-node"):
        return
    models = [mount for mount in container.get("volumeMounts", ()) if mount["mountPath"] == "/models"]
    read_only = any(mount.get("readOnly") for mount in models)
    has_cache = any(variable["name"] == "XDG_CACHE_HOME" for variable in container.get("env", ()))
    if read_only and not has_cache and values.get("weight-cache") != "off":
        yield f"{program.name} can keep packed weights nowhere and has no weight-cache: 'off'"


def container_mistakes(container, values, program):
    """Wrong flags, environment variables, keys and ports of one container."""
    for argument in container.get("args", ()):
        flag = re.match(r"--([a-z0-9-]+)", str(argument))
        if flag and flag.group(1) not in program.flags | COMMON_FLAGS:
            yield f"{program.name} has no flag --{flag.group(1)}"
    yield from packed_weights_mistakes(container, values, program)
    known = program.environment() | COMMON_ENVIRONMENT
    for variable in container.get("env", ()):
        if variable["name"] not in known:
            yield f"{program.name} does not read {variable['name']}"
    for key in values:
        if key not in program.flags:
            yield f"{program.name} has no configuration key {key}"
    opened = {port_of(values[key]) for key in ("grpc", "fleet", "http", "health") if key in values}
    by_name = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    named = set(by_name.values())
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        port = (container[probe].get("grpc") or container[probe]["httpGet"])["port"]
        if isinstance(port, str) and port not in by_name:
            yield f"{program.name}: {probe} asks port {port}, which has no such name"
        named.add(by_name.get(port, port))
    for port in sorted(named - opened, key=str):
        yield f"{program.name} does not listen on {port} (its configuration names {sorted(opened)})"


def mistakes(objects, programs, yaml):
    """One line per mistake in the pods that run `programs` (name → ProgramFlags)."""
    found, seen = [], set()
    for name, pod in pod_specs(objects):
        values = configuration(pod, objects, yaml)
        for container in pod["containers"]:
            command = (container.get("command") or [""])[0]
            if command not in programs:
                continue
            seen.add(command)
            found += [f"{name}: {m}" for m in container_mistakes(container, values, programs[command])]
    found += [f"no workload runs {name}" for name in sorted(set(programs) - seen)]
    return found


def example_programs(objects, yaml):
    """Programs that know exactly what these objects use: for testing `mistakes` itself."""
    programs = {}
    for _, pod in pod_specs(objects):
        values = configuration(pod, objects, yaml)
        for container in pod["containers"]:
            command = (container.get("command") or [""])[0]
            if command in PROGRAMS:
                programs[command] = ProgramFlags(command, {*values, "id"})
    return programs
