"""Checks cert-manager's objects, and that the Secrets which pods mount are made by something."""

import re

GROUP = "cert-manager.io/"

# Fields of cert-manager.io/v1 that the manifests may use (its CertificateSpec and IssuerSpec).
FIELDS = {
    "Certificate": {
        "secretName", "duration", "renewBefore", "commonName", "dnsNames", "ipAddresses", "uris", "usages",
        "privateKey", "issuerRef", "isCA",
    },
    "Issuer": {"selfSigned", "ca"},
}
ROLES = {"tandem-router": "router", "tandem-prefill-node": "prefill", "tandem-decode-node": "decode"}


def of_cert_manager(item):
    return str(item.get("apiVersion", "")).startswith(GROUP)


def secret_files(pod):
    """(Secret, keys or None for all) of each Secret that a pod mounts."""
    for volume in pod.get("volumes", ()):
        if "secret" in volume:
            items = volume["secret"].get("items")
            yield volume["secret"]["secretName"], {item["key"] for item in items} if items else None


def tls_secret(pod, values):
    """The Secret whose files `fleet-tls` names, by the mount's path."""
    for container in pod["containers"]:
        for mount in container.get("volumeMounts", ()):
            if mount["mountPath"] == values.get("fleet-tls"):
                for volume in pod["volumes"]:
                    if volume["name"] == mount["name"]:
                        return volume["secret"]["secretName"]
    return None


def cert_manager_mistakes(objects, pods):
    """One line for each mistake. `pods`: (program, pod, configuration) of each workload."""
    issuers = {item["metadata"]["name"] for item in objects if of_cert_manager(item) and item["kind"] == "Issuer"}
    made = {}
    for item in objects:
        if not of_cert_manager(item):
            continue
        name, spec = f"{item['kind']} {item['metadata']['name']}", item["spec"]
        for field in sorted(set(spec) - FIELDS.get(item["kind"], set())):
            yield f"{name} has the field {field}, which cert-manager does not know"
        if item["kind"] != "Certificate":
            continue
        made[spec["secretName"]] = spec
        if spec["issuerRef"]["name"] not in issuers:
            yield f"{name} names the issuer {spec['issuerRef']['name']}, which is none"
    for item in objects:
        if of_cert_manager(item) and "ca" in item["spec"]:
            authority = made.get(item["spec"]["ca"]["secretName"])
            if authority is None or not authority.get("isCA"):
                yield f"Issuer {item['metadata']['name']} has no certificate of an authority"
    for program, pod, values in pods:
        spec = made.get(tls_secret(pod, values))
        if spec is None:
            yield f"{program}: no Certificate makes the Secret of its fleet-tls"
        elif not any(re.fullmatch(rf"spiffe://.+/tandem/{ROLES[program]}", uri) for uri in spec.get("uris", ())):
            yield f"{program}: its Certificate names {spec.get('uris')}, not the role {ROLES[program]}"


def missing_secrets(pods, secrets):
    """One line for each Secret or key that a pod mounts and `secrets` (name → keys) lacks."""
    for program, pod, _ in pods:
        for name, keys in secret_files(pod):
            if name not in secrets:
                yield f"{program} mounts the Secret {name}, which nothing makes"
            elif keys is not None and not keys <= secrets[name]:
                yield f"{program} mounts {sorted(keys - secrets[name])} of {name}, which lacks it"


def plaintext(program, values):
    """What the configuration of a program leaves open that the base promises."""
    wanted = {"fleet-secret-file", "fleet-tls"}
    if program == "tandem-router":
        wanted |= {"tls-cert", "tls-key", "api-keys"}
    return [f"{program}: {key} is not set" for key in sorted(wanted - set(values))]
