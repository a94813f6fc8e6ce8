"""The objects of the cluster that the driver reads and writes: names, labels, records. Pure.

A Lease is a record of one of three kinds: `chat` says which sandbox a chat has, and who serves it; `trash` keeps what
is known of a discarded one; `removed` names a sandbox whose files are still to be removed. A sandbox is in the trash if
it has a `trash` record and no `chat` record names it: so each change of a chat's record is one write that decides.

A chat that takes a blank pod writes its record first, and then its label on the pod; of several that want one pod, the
label tells who has it. After that its record is `bound`, which holds when the pod is gone. A record that is not bound
counts only while the pod is there and no other chat has a better claim (`rightful`).
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cubicle.machine.errors import SandboxError

Object = dict[str, Any]
APP = "app.kubernetes.io/name"
INSTANCE = "app.kubernetes.io/instance"
POD_APP = "cubicle-sandbox"
DOMAIN = "cubicle.dev"
STATE, SANDBOX, CHAT = f"{DOMAIN}/state", f"{DOMAIN}/sandbox", f"{DOMAIN}/chat"
BLANK, TAKEN, APART = "blank", "taken", "apart"
"""What a pod's `state` says. One that is apart has no chat, and is not for one: whoever made it tries the isolation in
it, and deletes it."""
KIND, POD, OWNER, NOTE, STEP, TERMS, IMAGE = (
    f"{DOMAIN}/{word}" for word in ("kind", "pod", "owner", "note", "step", "terms", "image")
)
BOUND, DELETING = "bound", "deleting"
FIRST_EPOCH = 1
_RECORD_APP = "cubicle-record"
_KEPT_OF_META = (
    *("name", "uid", "resourceVersion", "labels", "annotations"),
    *("creationTimestamp", "deletionTimestamp", "ownerReferences"),
)
_NAMED = ("name", "uid", "resourceVersion", "creationTimestamp")
_CONTAINERS = ("containerStatuses", "initContainerStatuses")
_WORD = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def word(text: str) -> str:
    """A name that may be part of a label and of an object's name. Raises SandboxError."""
    if not _WORD.fullmatch(text):
        raise SandboxError("A sandbox's name is 1 to 63 lower-case letters, digits and -.")
    return text


def selector(instance: str, app: str, **more: str) -> str:
    """Labels in the words of a list."""
    return ",".join(f"{name}={value}" for name, value in {APP: app, INSTANCE: instance, **more}.items())


def records_selector(instance: str, sandbox: str = "", kind: str = "") -> str:
    labels = ({SANDBOX: sandbox} if sandbox else {}) | ({KIND: kind} if kind else {})
    return selector(instance, _RECORD_APP, **labels)


def pods_selector(instance: str, **more: str) -> str:
    return selector(instance, POD_APP, **more)


@dataclass(frozen=True, slots=True)
class Record:
    """A Lease of ours."""

    kind: str
    sandbox: str
    owner: str = ""
    pod: str = ""
    """The name of its pod, present or last."""
    epoch: int = FIRST_EPOCH
    holder: str = ""
    note: str = ""
    step: str = ""
    """Of a chat's: bound, deleting, or nothing as long as the pod's label decides."""
    found: Object | None = None
    """The object as it was read."""

    def body(self, instance: str) -> Object:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": record_name(instance, self.kind, self.owner if self.kind == "chat" else self.sandbox),
                "labels": {APP: _RECORD_APP, INSTANCE: instance, KIND: self.kind, SANDBOX: self.sandbox},
                "annotations": {OWNER: self.owner, POD: self.pod, NOTE: self.note, STEP: self.step},
            },
            "spec": {"holderIdentity": self.holder, "leaseTransitions": self.epoch, "acquireTime": now},
        }

    @classmethod
    def parse(cls, lease: Object) -> Record:
        """Raises KeyError, TypeError or ValueError for what is none of ours."""
        meta = lease["metadata"]
        notes, spec = meta.get("annotations") or {}, lease.get("spec") or {}
        return cls(
            kind=str(meta["labels"][KIND]),
            sandbox=word(str(meta["labels"][SANDBOX])),
            owner=str(notes.get(OWNER, "")),
            pod=str(notes.get(POD, "")),
            epoch=max(FIRST_EPOCH, int(spec.get("leaseTransitions") or 0)),
            holder=str(spec.get("holderIdentity") or ""),
            note=str(notes.get(NOTE, "")),
            step=str(notes.get(STEP, "")),
            found=lease,
        )


def rightful(chats: Sequence[Record], pod_owner: str | None) -> Record | None:
    """Which of the chats' records that name one sandbox has it: the bound one, or the one whose label its pod has.

    One alone may go on with a pod that has no label. Without a pod (None) no other than the bound one has it: the pod
    and its files may have been somebody else's since.
    """
    for record in chats:
        if record.step or (pod_owner and record.owner == pod_owner):
            return record
    return chats[0] if len(chats) == 1 and pod_owner == "" else None


def owner_references(record: Record | None) -> list[Object]:
    """Has a pod be the record's: nodes can be drained of it as of any pod with a controller, and without the record the
    cluster deletes it."""
    if record is None or record.found is None:
        return []
    meta = record.found["metadata"]
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "controller": True}
    return [{**kind, "name": meta["name"], "uid": meta["uid"]}]


def record_name(instance: str, kind: str, key: str) -> str:
    return f"{instance}-{kind}-{word(key)}"


def named(found: Object) -> Object:
    """What deleting an object and telling its age take: of thousands, no more is kept."""
    return {"metadata": {name: found["metadata"][name] for name in _NAMED if name in found["metadata"]}}


def age(found: Object | None) -> float:
    """How long ago an object was made, in seconds; of what does not say it, none."""
    text = ((found or {}).get("metadata") or {}).get("creationTimestamp")
    try:
        made = datetime.datetime.fromisoformat(str(text))
        return (datetime.datetime.now(datetime.UTC) - made).total_seconds()
    except (ValueError, TypeError):  # it may name no time zone
        return 0.0


@dataclass(frozen=True, slots=True)
class PodSeen:
    """What of a pod matters."""

    name: str
    uid: str
    sandbox: str
    owner: str
    phase: str
    address: str
    leaving: bool
    """It is being deleted."""
    lost: bool
    """Its node does not answer: nobody knows whether it still runs."""
    ended: str
    """Why its first process is over, if it is."""
    trouble: str
    """What keeps it from starting and will not pass by itself."""
    terms: str
    image: str
    found: Object

    @property
    def live(self) -> bool:
        return not self.leaving and not self.ended and self.phase in ("Pending", "Running")

    @property
    def running(self) -> bool:
        return self.live and self.phase == "Running" and bool(self.address)


_HOPELESS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "ErrImageNeverPull"}
)


def pod_seen(pod: Object) -> PodSeen:
    meta, status = pod["metadata"], pod.get("status") or {}
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    phase = str(status.get("phase", "Pending"))
    containers = status.get("containerStatuses") or []
    beginning = status.get("initContainerStatuses") or []
    restarts = (pod.get("spec") or {}).get("restartPolicy") != "Never"
    ended = ""
    if phase in ("Failed", "Succeeded") or (not restarts and any("terminated" in _state(one) for one in containers)):
        ended = _why(containers, beginning, str(status.get("message") or status.get("reason") or ""))
    waiting = [_state(one).get("waiting") or {} for one in (*beginning, *containers)]
    stuck = [one for one in waiting if one.get("reason") in _HOPELESS]
    return PodSeen(
        name=meta["name"],
        uid=meta["uid"],
        sandbox=labels.get(SANDBOX) or meta["name"],
        owner=labels.get(CHAT, ""),
        phase=sys.intern(phase),
        address=str(status.get("podIP") or ""),
        leaving=bool(meta.get("deletionTimestamp")),
        lost=_node_is_lost(status),
        ended=ended,
        trouble=f"{stuck[0]['reason']}: {str(stuck[0].get('message', ''))[:200]}" if stuck else "",
        terms=sys.intern(notes.get(TERMS, "")),
        image=sys.intern(notes.get(IMAGE, "")),
        found=pod,
    )


def why_ended(pod: PodSeen | None) -> str:
    """Why a sandbox that nobody here has stopped is not up any more, as far as its pod tells; for people."""
    kept = "Its files are kept, what ran in it has ended, and the next call starts it again"
    if pod is None or pod.leaving:
        return (
            f"Its pod was deleted: its node is being drained or was lost, or somebody deleted it. {kept}, on any node."
        )
    if pod.ended:
        return f"Its pod ended: {pod.ended}. {kept}."
    return f"Its node does not answer. {kept}, on another node." if pod.lost else ""


def _node_is_lost(status: Object) -> bool:
    """The cluster calls pods not ready whose node does not answer, while all that the node last said was good."""
    ready = [one.get("status") for one in status.get("conditions") or [] if one.get("type") == "Ready"]
    containers = status.get("containerStatuses") or []
    return ready in (["False"], ["Unknown"]) and bool(containers) and all(one.get("ready") for one in containers)


def reduced_pod(pod: Object) -> Object:
    """What the driver looks at in a pod: a twentieth of it. It keeps thousands."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    programs = [volume for volume in spec.get("volumes") or [] if volume.get("name") == "programs"]
    conditions = [
        one for one in status.get("conditions") or [] if one.get("type") == "Ready" or one.get("status") == "False"
    ]
    return {
        "metadata": {name: meta[name] for name in _KEPT_OF_META if name in meta},
        "spec": {**{name: spec[name] for name in ("restartPolicy", "nodeName") if name in spec}, "volumes": programs},
        "status": {name: status[name] for name in ("phase", "podIP", "reason", "message") if name in status}
        | {name: [_reduced_container(one) for one in status.get(name) or []] for name in _CONTAINERS}
        | {"conditions": conditions},
    }


def _reduced_container(one: Object) -> Object:
    return {name: one[name] for name in ("ready", "state") if name in one}


def has_ended(pod: Object) -> bool:
    """Whether no container of it runs any more, as the kubelet says."""
    containers = (pod.get("status") or {}).get("containerStatuses") or []
    return bool(containers) and all("terminated" in _state(one) for one in containers)


def _state(container: Object) -> Object:
    return container.get("state") or {}


def _why(containers: list[Object], beginning: list[Object], said: str) -> str:
    for one in beginning:
        over = _state(one).get("terminated") or {}
        if over.get("exitCode"):
            return f"it could not be prepared: {str(over.get('message') or over.get('reason', ''))[:300]}"
    for one in containers:
        over = _state(one).get("terminated") or {}
        if over.get("reason") == "OOMKilled":
            return "it ran out of memory as a whole"
        if over:
            return "its first process ended"
    return said or "its pod ended"
