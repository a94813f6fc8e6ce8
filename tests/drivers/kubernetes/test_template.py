"""What a sandbox's pod is like, by the text of its description alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cubicle.drivers.kubernetes import template
from cubicle.drivers.kubernetes.objects import (
    DELETING,
    Object,
    PodSeen,
    Record,
    has_ended,
    pod_seen,
    reduced_pod,
    rightful,
    why_ended,
)
from cubicle.drivers.kubernetes.template import PodTerms
from cubicle.machine.errors import Unusable
from cubicle.sandbox.driver import SandboxLimits
from cubicle.settings_kubernetes import PodFiles, PodIsolation

TERMS = PodTerms(instance="test", image="registry/sandbox@sha256:0", limits=SandboxLimits(), keys=("abc",))
# Pod Security Standards, baseline: what a container may add.
BASELINE = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP"),
    *("SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]


@pytest.mark.parametrize("isolation", PodIsolation)
@pytest.mark.parametrize("files", PodFiles)
def test_a_pod_keeps_to_what_isolation_stands_on(isolation: PodIsolation, files: PodFiles) -> None:
    terms = PodTerms("test", "image", SandboxLimits(), ("abc",), isolation, files)
    for pod in (
        template.sandbox_pod(terms, "name", "name", Record("chat", "name", "a" * 32)),
        template.pod_template(terms),
    ):
        spec = pod["spec"]
        assert not spec["automountServiceAccountToken"]
        assert not spec["enableServiceLinks"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(spec)
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume or "secret" in volume]
        for container in containers(pod):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"]
            assert not security["allowPrivilegeEscalation"]
            assert security["capabilities"]["drop"] == ["ALL"]
            beyond = set(security["capabilities"]["add"]) - BASELINE
            rules = isolation is PodIsolation.RULES and container["name"] == "prepare"
            assert beyond == ({"NET_ADMIN"} if rules else set())
        assert set(spec["containers"][0]["securityContext"]["capabilities"]["add"]) == {
            *("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
        }


def test_a_pods_arguments_hold_nothing_secret() -> None:
    pod = template.sandbox_pod(TERMS, "name", "name", None)
    config = json.loads(pod["spec"]["containers"][0]["command"][-1])
    assert set(config) == {"tcp", "identity", "keys", "uid", "gid", "aliases", "records"}
    assert config["identity"] == "$(POD_UID)"


def test_the_programs_of_a_pod_fit_into_an_object_and_name_it() -> None:
    body = template.programs_map("test")
    assert len(json.dumps(body)) < 1_000_000
    assert body["immutable"]
    assert {"guest.pyz", "launcher.py", "network_rules.py", "provision.py", "seccomp-x86_64"} <= set(body["binaryData"])


def test_a_change_of_limits_or_isolation_is_a_change_of_terms() -> None:
    others = [
        PodTerms("test", "registry/sandbox@sha256:1", SandboxLimits(), ("abc",)),
        PodTerms("test", TERMS.image, SandboxLimits(cpus=1), ("abc",)),
        PodTerms("test", TERMS.image, SandboxLimits(), ("abd",)),
        PodTerms("test", TERMS.image, SandboxLimits(), ("abc",), PodIsolation.POLICY),
    ]
    assert len({TERMS.digest(), *(terms.digest() for terms in others)}) == 5


def test_an_administrator_adds_to_a_pod_and_takes_nothing_from_it(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(
        "metadata: {labels: {team: a, cubicle.dev/state: taken}}\n"
        "spec: {nodeSelector: {disk: ssd}, runtimeClassName: gvisor, resources: {requests: {cpu: 500m}},\n"
        "  tolerations: [{key: sandboxes, operator: Exists}]}\n"
    )
    terms = PodTerms("test", "image", SandboxLimits(), ("abc",), extra=template.read_extra(file))
    pod = template.pod_template(terms)
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["labels"]["cubicle.dev/state"] == "blank"
    assert pod["spec"]["runtimeClassName"] == "gvisor"
    assert pod["spec"]["tolerations"][0] == {"key": "sandboxes", "operator": "Exists"}
    assert pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "500m"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "2000m"


@pytest.mark.parametrize(
    "text",
    [
        "spec: {hostNetwork: true}",
        "spec: {securityContext: {runAsUser: 0}}",
        "spec: {volumes: []}",
        "spec: {serviceAccountName: admin}",
        "kind: Pod",
        "metadata: {name: x}",
        "[]",
        "{",
    ],
)
def test_what_isolation_stands_on_is_not_the_administrators_to_change(tmp_path: Path, text: str) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(text)
    with pytest.raises(Unusable, match="KUBERNETES_POD_TEMPLATE"):
        template.read_extra(file)


def chat(owner: str, step: str = "") -> Record:
    return Record("chat", "box", owner, step=step)


def test_of_several_records_that_name_one_sandbox_one_has_it_or_none() -> None:
    assert rightful([], "a") is None
    assert rightful([chat("a")], "") == chat("a")
    assert rightful([chat("a")], None) is None
    assert rightful([chat("a")], "b") is None
    assert rightful([chat("a"), chat("b", "bound")], None) == chat("b", "bound")
    assert rightful([chat("a"), chat("b")], "b") == chat("b")
    assert rightful([chat("a"), chat("b")], "") is None
    assert rightful([chat("a"), chat("b")], "c") is None


def test_a_record_reads_as_it_was_written() -> None:
    record = Record("chat", "box", "a" * 32, "pod", 7, "me", "note", DELETING)
    body = record.body("test")
    assert body["metadata"]["name"] == "test-chat-" + "a" * 32
    read = Record.parse(body)
    assert (read.owner, read.pod, read.epoch, read.holder, read.note, read.step) == (
        *("a" * 32, "pod", 7, "me", "note", DELETING),
    )


@pytest.mark.parametrize("seen", [pod_seen, lambda pod: pod_seen(reduced_pod(pod))], ids=["whole", "reduced"])
def test_what_a_pod_says_of_itself(seen: Callable[[Object], PodSeen]) -> None:
    pod: dict[str, Any] = {
        "metadata": {"name": "box", "uid": "u"},
        "spec": {"restartPolicy": "Never"},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }
    assert seen(pod).running
    pod["metadata"]["deletionTimestamp"] = "now"
    assert not seen(pod).live
    del pod["metadata"]["deletionTimestamp"]
    pod["status"]["containerStatuses"] = [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]
    assert "memory" in seen(pod).ended
    assert has_ended(seen(pod).found)
    pod["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}],
    }
    assert "no such image" in seen(pod).trouble
    pod["status"] = {
        "phase": "Failed",
        "initContainerStatuses": [{"state": {"terminated": {"exitCode": 1, "message": "no nftables"}}}],
    }
    assert "no nftables" in seen(pod).ended


def test_of_a_pod_is_kept_what_is_looked_at() -> None:
    pod = template.sandbox_pod(TERMS, "box", "box", None)
    pod["metadata"] |= {"uid": "u", "managedFields": [{"manager": "x" * 1000}]}
    pod["spec"]["nodeName"] = "node"
    kept = reduced_pod(pod)
    assert len(json.dumps(kept)) < 1000 < len(json.dumps(pod)) / 4
    assert kept["spec"]["nodeName"] == "node"
    assert [volume["name"] for volume in kept["spec"]["volumes"]] == ["programs"]


@pytest.mark.parametrize("seen", [pod_seen, lambda pod: pod_seen(reduced_pod(pod))], ids=["whole", "reduced"])
def test_a_pod_of_a_node_that_does_not_answer_is_lost(seen: Callable[[Object], PodSeen]) -> None:
    """The cluster calls it not ready, and the last word of its node was that it is."""
    status: dict[str, Any] = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
        "containerStatuses": [{"ready": True, "state": {"running": {}}}],
    }
    pod: dict[str, Any] = {"metadata": {"name": "box", "uid": "u"}, "status": status}
    assert not seen(pod).lost
    assert why_ended(seen(pod)) == ""
    status["conditions"][1]["status"] = "False"
    assert seen(pod).lost
    assert "node does not answer" in why_ended(seen(pod))
    status["containerStatuses"][0]["ready"] = False  # its node says so itself: it is being restarted
    assert not seen(pod).lost
    status["containerStatuses"] = []
    assert not seen(pod).lost
    pod["metadata"]["deletionTimestamp"] = "now"
    assert "drained" in why_ended(seen(pod))
    assert "drained" in why_ended(None)


def test_a_pod_belongs_to_the_record_of_its_chat() -> None:
    """So that nodes can be drained of it, and that it goes with the record."""
    record = Record.parse(chat("a" * 32).body("test") | {"spec": {}})
    assert record.found is not None
    record.found["metadata"]["uid"] = "uid"
    (owner,) = template.sandbox_pod(TERMS, "name", "box", record)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Lease", "test-chat-" + "a" * 32, "uid")
    assert owner["controller"] is True
    assert "ownerReferences" not in template.sandbox_pod(TERMS, "name", "box", None)["metadata"]
