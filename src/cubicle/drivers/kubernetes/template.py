"""The pod of a sandbox, and what its containers are given. Pure, but for the sources that it carries."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from cubicle.drivers.common import container_programs, seccomp_filter
from cubicle.drivers.common.container import RLIMITS, WRITABLE
from cubicle.drivers.kubernetes.objects import (
    APART,
    APP,
    BLANK,
    CHAT,
    IMAGE,
    INSTANCE,
    POD_APP,
    SANDBOX,
    STATE,
    TAKEN,
    TERMS,
    Object,
    Record,
    owner_references,
)
from cubicle.guest import bundle
from cubicle.guest.guest_config import GuestConfig
from cubicle.machine.errors import Unusable
from cubicle.sandbox.driver import SandboxLimits
from cubicle.settings_kubernetes import PodFiles, PodIsolation

GUEST_PORT = 8000
PROGRAMS_APP, REMOVAL_APP = "cubicle-guest", "cubicle-removal"
_PROGRAMS = "/run/cubicle/guest"
_VOLUME = "/mnt/volume"
_RECORDS = "/run/cubicle/records"
"""Of the guest: what was asked for, and what its file tools replaced."""
_PYTHON = ["/usr/bin/python3", "-I", "-S"]
_SHM = "256Mi"
_LOST_NODE_SECONDS = 20
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
"""What the guest needs to act for its commands, and to keep and put back their files; they have none."""
_PREPARING = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
_REMOVING = ("DAC_OVERRIDE", "FOWNER")
_MACHINES = ("x86_64", "aarch64")
_MOUNTS = (
    # folder of the volume, where it is seen, read-only
    ("home", "/home/assistant", False),
    ("outputs", "/mnt/user-data/outputs", False),
    ("uploads", WRITABLE["/mnt/user-data/uploads"], False),
    ("uploads", "/mnt/user-data/uploads", True),
    ("skills", WRITABLE["/mnt/skills"], False),
    ("skills", "/mnt/skills", True),
    ("records", _RECORDS, False),
    ("tmp", "/tmp", False),  # noqa: S108 - of the sandbox
    ("vartmp", "/var/tmp", False),  # noqa: S108
)
_ADMINISTRATORS = frozenset(
    (
        *("affinity", "hostUsers", "imagePullSecrets", "nodeSelector", "priorityClassName", "resources"),
        *("runtimeClassName", "schedulerName", "tolerations", "topologySpreadConstraints"),
    )
)
"""What an administrator's template may say of the pod; the rest is what isolation stands on."""


@dataclass(frozen=True, slots=True)
class PodTerms:
    """What the settings say of each pod."""

    instance: str
    image: str
    limits: SandboxLimits
    keys: tuple[str, ...] = ()
    """Of whom guests obey."""
    isolation: PodIsolation = PodIsolation.RULES
    files: PodFiles = PodFiles.SHARED
    claim: str = "cubicle-files"
    storage_class: str = ""
    extra: Object = field(default_factory=dict)
    """What the administrator's template adds."""

    def digest(self) -> str:
        """A blank one of other terms is not what a new one would be."""
        said = repr((self, sorted(programs())))
        content = b"".join(value for _, value in sorted(programs().items()))
        return hashlib.sha256(said.encode() + content).hexdigest()[:16]


_programs: dict[str, bytes] = {}


def programs() -> dict[str, bytes]:
    """Everything that a pod's containers run, by file name. Read once."""
    if not _programs:
        folder = Path(str(container_programs.__file__)).parent
        for name in ("network_rules.py", "provision.py", "launcher.py"):
            _programs[name] = (folder / name).read_bytes()
        for machine in _MACHINES:
            _programs[f"seccomp-{machine}"] = seccomp_filter.compile_filter(machine)
        _programs["guest.pyz"] = bundle.build()
    return _programs


def programs_name(instance: str) -> str:
    whole = hashlib.sha256()
    for name, content in sorted(programs().items()):
        whole.update(f"{name} {len(content)} ".encode() + content)
    return f"{instance}-guest-{whole.hexdigest()[:16]}"


def programs_map(instance: str) -> Object:
    """The ConfigMap that carries them; another content is another object."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": programs_name(instance), "labels": {APP: PROGRAMS_APP, INSTANCE: instance}},
        "immutable": True,
        "binaryData": {name: base64.b64encode(content).decode() for name, content in programs().items()},
    }


def read_extra(file: Path | None) -> Object:
    """The administrator's template. Raises Unusable. Blocking."""
    if file is None:
        return {}
    try:
        told = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise Unusable(f"KUBERNETES_POD_TEMPLATE={file} cannot be read: {error}") from None
    told = {} if told is None else told
    if not isinstance(told, dict) or not isinstance(told.get("metadata", {}), dict):
        raise Unusable(f"KUBERNETES_POD_TEMPLATE={file} has to be an object with metadata and spec.")
    spec = told.get("spec") or {}
    if not isinstance(spec, dict):
        raise Unusable(f"KUBERNETES_POD_TEMPLATE={file}: spec has to be an object.")
    odd = [*(set(told) - {"metadata", "spec"}), *(set(spec) - _ADMINISTRATORS)]
    odd += [f"metadata.{name}" for name in set(told.get("metadata", {})) - {"labels", "annotations"}]
    if odd:
        allowed = ", ".join(sorted(_ADMINISTRATORS))
        raise Unusable(
            f"KUBERNETES_POD_TEMPLATE={file} may not say {', '.join(sorted(odd))}; of spec it may: {allowed}."
        )
    return told


def sandbox_pod(terms: PodTerms, name: str, sandbox: str, record: Record | None, *, apart: bool = False) -> Object:
    """A pod that the service makes itself, for the chat of the record: it ends when its guest does. One that is apart
    is nobody's, and no chat takes it for one of the pool."""
    made = pod_template(terms, sandbox)
    labels = {STATE: APART if apart else BLANK, SANDBOX: sandbox}
    if record is not None:
        labels |= {STATE: TAKEN, CHAT: record.owner}
        made["metadata"]["ownerReferences"] = owner_references(record)
    made["metadata"] |= {"name": name, "labels": {**made["metadata"]["labels"], **labels}}
    made["spec"]["restartPolicy"] = "Never"
    return {"apiVersion": "v1", "kind": "Pod", **made}


def pod_template(terms: PodTerms, sandbox: str = "") -> Object:
    """Of a blank one that the cluster makes if no sandbox is named: its folder has the pod's own name."""
    extra_meta, extra = terms.extra.get("metadata") or {}, dict(terms.extra.get("spec") or {})
    more_resources = extra.pop("resources", {})
    tolerations = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for what, seconds in (("unreachable", _LOST_NODE_SECONDS), ("not-ready", _LOST_NODE_SECONDS))
    ]
    return {
        "metadata": {
            "labels": {**(extra_meta.get("labels") or {}), APP: POD_APP, INSTANCE: terms.instance, STATE: BLANK},
            "annotations": {**(extra_meta.get("annotations") or {}), TERMS: terms.digest(), IMAGE: terms.image},
        },
        "spec": {
            **extra,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Always",
            "hostname": "cubicle",
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["127.0.0.1"]},
            "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
            "tolerations": [*(extra.get("tolerations") or []), *tolerations],
            "volumes": [*_fixed_volumes(terms), {"name": "files", **_files(terms, sandbox)}],
            "initContainers": [_prepare(terms, sandbox)],
            "containers": [_sandbox(terms, sandbox, more_resources)],
        },
    }


def _fixed_volumes(terms: PodTerms) -> list[Object]:
    return [
        {"name": "private", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHM}},
        {"name": "programs", "configMap": {"name": programs_name(terms.instance), "defaultMode": 0o400}},
    ]


def _files(terms: PodTerms, sandbox: str) -> Object:
    if terms.files is PodFiles.SHARED:
        return {"persistentVolumeClaim": {"claimName": terms.claim}}
    if sandbox:
        return {"persistentVolumeClaim": {"claimName": claim_name(sandbox)}}
    return {"ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(terms)}}}


def claim_name(sandbox: str) -> str:
    """As Kubernetes names the claim of a pod's own volume `files`."""
    return f"{sandbox}-files"


def claim_spec(terms: PodTerms) -> Object:
    spec: Object = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(terms.limits.disk_bytes)}},
    }
    return spec | ({"storageClassName": terms.storage_class} if terms.storage_class else {})


def _mounted(terms: PodTerms, sandbox: str, folder: str, path: str, read_only: bool = False) -> Object:
    """A folder of the sandbox's files; in a shared volume they are in a folder of its name."""
    mount: Object = {"name": "files", "mountPath": path, "readOnly": read_only}
    if terms.files is PodFiles.CLAIM:
        return mount | ({"subPath": folder} if folder else {})
    if sandbox:
        return mount | {"subPath": f"{sandbox}/{folder}".rstrip("/")}
    return mount | {"subPathExpr": f"$(POD_NAME)/{folder}".rstrip("/")}


def _prepare(terms: PodTerms, sandbox: str) -> Object:
    script = f"exec {' '.join(_PYTHON)} {_PROGRAMS}/provision.py {_VOLUME} /home/assistant"
    if terms.isolation is PodIsolation.RULES:
        script = f"{' '.join(_PYTHON)} {_PROGRAMS}/network_rules.py {GUEST_PORT} && {script}"
    more = ("NET_ADMIN",) if terms.isolation is PodIsolation.RULES else ()
    return {
        "name": "prepare",
        "image": terms.image,
        "command": ["/bin/sh", "-c", script],
        "env": [_downward("POD_NAME", "metadata.name")],
        "securityContext": _security((*_PREPARING, *more)),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}},
        "volumeMounts": [
            {"name": "programs", "mountPath": _PROGRAMS, "readOnly": True},
            _mounted(terms, sandbox, "", _VOLUME),
        ],
    }


def _sandbox(terms: PodTerms, sandbox: str, resources: Object) -> Object:
    config = GuestConfig(
        tcp=GUEST_PORT,
        identity="$(POD_UID)",
        keys=list(terms.keys),
        uid=1000,
        gid=1000,
        aliases=WRITABLE,
        records=f"{_RECORDS}/calls",
    )
    return {
        "name": "sandbox",
        "image": terms.image,
        "command": [*_PYTHON, f"{_PROGRAMS}/launcher.py", _PROGRAMS, json.dumps(RLIMITS), config.encode().decode()],
        "workingDir": "/",
        "env": [_downward("POD_UID", "metadata.uid"), _downward("POD_NAME", "metadata.name")],
        "ports": [{"name": "guest", "containerPort": GUEST_PORT}],
        "securityContext": _security(_CAPABILITIES),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": _resources(terms.limits, resources),
        "volumeMounts": [
            {"name": "private", "mountPath": "/run/cubicle"},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
            {"name": "programs", "mountPath": _PROGRAMS, "readOnly": True},
            *(_mounted(terms, sandbox, *mount) for mount in _MOUNTS),
        ],
    }


def _resources(limits: SandboxLimits, extra: Object) -> Object:
    most = {"cpu": f"{round(limits.cpus * 1000)}m", "memory": str(limits.memory_bytes)}
    return {
        "requests": {"cpu": "50m", "memory": "64Mi", **(extra.get("requests") or {})},
        "limits": {**(extra.get("limits") or {}), **most},
    }


def _security(capabilities: tuple[str, ...]) -> Object:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": list(capabilities)},
    }


def _downward(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


_REMOVE = """
import shutil, sys
failed = []
for name in sys.argv[1:]:
    try: shutil.rmtree("/files/" + name)
    except FileNotFoundError: pass
    except OSError as error: failed.append(str(error))
sys.exit("; ".join(failed) or 0)
"""


def removal_pod(terms: PodTerms, name: str, sandboxes: list[str]) -> Object:
    """A pod that removes the folders of sandboxes from the shared volume. The service never walks them itself, and
    Python removes a tree by descriptors, so that no link leads it elsewhere."""
    extra = dict(terms.extra.get("spec") or {})
    extra.pop("resources", None)
    container = {
        "name": "remove",
        "image": terms.image,
        "command": [*_PYTHON, "-c", _REMOVE, *sandboxes],
        "securityContext": _security(_REMOVING),
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
        "volumeMounts": [{"name": "files", "mountPath": "/files"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {APP: REMOVAL_APP, INSTANCE: terms.instance}},
        "spec": {
            **extra,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "activeDeadlineSeconds": 3600,
            "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "files", "persistentVolumeClaim": {"claimName": terms.claim}}],
            "containers": [container],
        },
    }


def deployment(terms: PodTerms) -> Object:
    """The blank ones, which the cluster keeps up; how many is not said here: what is applied once would be kept."""
    labels = {APP: POD_APP, INSTANCE: terms.instance, STATE: BLANK}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"{terms.instance}-blank", "labels": {APP: POD_APP, INSTANCE: terms.instance}},
        "spec": {"selector": {"matchLabels": labels}, "template": pod_template(terms)},
    }
