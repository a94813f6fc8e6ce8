"""The chart: what Helm makes of it, by Helm itself. That a cluster takes it is in tests/drivers/kubernetes/test_chart.py."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cubicle.drivers.common.guest_tcp import GuestKeys
from cubicle.drivers.kubernetes import checks
from cubicle.drivers.kubernetes.template import read_extra
from cubicle.members.hop_keys import HopKeys
from cubicle.settings import Settings
from tests.support.helm import CHART, REQUIRED, ROOT, helm, merged, refusal, render

EVERYTHING: dict[str, Any] = {
    "settings": {"EGRESS": "allowlist", "DATA_MAX_AGE_DAYS": 90, "FORWARDED_ALLOW_IPS": "10.0.0.0/8"},
    "secretSettings": {"ANTHROPIC_API_KEY": "sk-of-a-test"},
    "existingSecretSettings": ["more-settings"],
    "settingsFiles": {"EGRESS_RULES_FILE": "[[allow]]\nhost = 'example.org'\n"},
    "imagePullSecrets": [{"name": "registry"}],
    "apiServer": {"host": "10.0.0.1", "port": 6443},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "tools.example.org",
        "tlsSecret": "certificate",
        "previewDomain": "preview.example.net",
    },
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]},
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "sandboxes": {
        "namespace": "boxes",
        "createNamespace": True,
        "podTemplate": {"spec": {"runtimeClassName": "gvisor", "nodeSelector": {"pool": "boxes"}}},
        "quota": {"pods": "500"},
        "pool": {
            "autoscaling": {
                "enabled": True,
                "metrics": [
                    {
                        "type": "External",
                        "external": {"metric": {"name": "claims"}, "target": {"type": "Value", "value": "1"}},
                    }
                ],
            }
        },
    },
}


SEVERAL: dict[str, Any] = {"replicas": 3, "persistence": {"accessModes": ["ReadWriteMany"]}}


def by_kind(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [one for one in objects if one["kind"] == kind and name in ("", one["metadata"]["name"])]
    return found


def env_of(objects: list[dict[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = by_kind(objects, "ConfigMap", "rel-env")["data"]
    return found


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = by_kind(objects, "Deployment")["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize("more", [{}, EVERYTHING, SEVERAL], ids=["defaults", "everything", "several"])
def test_helm_finds_nothing_to_say(more: dict[str, Any]) -> None:
    helm("lint", "--strict", str(CHART), values=merged(REQUIRED, more))


def test_each_value_is_in_the_schema_and_each_of_the_schema_is_a_value() -> None:
    def names(values: Any, schema: dict[str, Any], at: str = "") -> None:
        if isinstance(values, dict) and "properties" in schema and values:
            assert set(values) == set(schema["properties"]), at
            assert schema["additionalProperties"] is False, at
            for name, value in values.items():
                names(value, schema["properties"][name], f"{at}.{name}")

    schema = json.loads((CHART / "values.schema.json").read_text())
    names(yaml.safe_load((CHART / "values.yaml").read_text()), schema)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sandboxes": REQUIRED["sandboxes"]}, "image.repository"),
        ({"image": REQUIRED["image"]}, "sandboxes.image"),
        (merged(REQUIRED, {"sandbox": {}}), "sandbox is not allowed"),
        (merged(REQUIRED, {"sandboxes": {"isolation": "none"}}), "isolation"),
        (merged(REQUIRED, {"sandboxes": {"podTemplate": {"spec": {"hostNetwork": True}}}}), "hostNetwork"),
        (merged(REQUIRED, {"settings": {"DRIVER": "memory"}}), "settings.DRIVER"),
        (merged(REQUIRED, {"settings": {"MCP_API_KEY": "a-key-in-the-clear"}}), "set secret.apiKey"),
        (merged(REQUIRED, {"secretSettings": {"METRICS_TOKEN": "another-token"}}), "set secret.metricsToken"),
        (merged(REQUIRED, {"secret": {"apiKey": "short"}}), "apiKey"),
        (merged(REQUIRED, {"ingress": {"enabled": True}}), "ingress.host"),
        (merged(REQUIRED, {"sandboxes": {"pool": {"autoscaling": {"enabled": True}}}}), "metrics"),
        (merged(REQUIRED, {"serviceAccount": {"create": False}}), "serviceAccount.name"),
        (merged(REQUIRED, {"replicas": 2}), "takes ReadWriteMany"),
        (merged(REQUIRED, {"autoscaling": {"enabled": True}}), "takes ReadWriteMany"),
        (merged(REQUIRED, {"replicas": 2, "persistence": {"enabled": False}}), "share their data"),
        (merged(REQUIRED, merged(SEVERAL, {"autoscaling": {"enabled": True, "maxReplicas": 65}})), "maxReplicas"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(values: dict[str, Any], said: str) -> None:
    assert said in refusal(values)


@pytest.mark.parametrize("more", [{}, EVERYTHING, SEVERAL], ids=["defaults", "everything", "several"])
def test_the_settings_are_settings_of_the_service_and_make_a_service(more: dict[str, Any]) -> None:
    env = env_of(render(more))
    known = {name.upper() for name in Settings.model_fields}
    assert set(env) - known == set()
    settings = Settings(_env_file=None, **{name.lower(): value for name, value in env.items()})  # type: ignore[arg-type]
    assert settings.driver == "kubernetes"
    assert settings.kubernetes_namespace == ("boxes" if more is EVERYTHING else "service")
    assert settings.public_base_url == ("https://tools.example.org" if more is EVERYTHING else "")


def test_large_numbers_are_written_out() -> None:
    """A setting that is a whole number is none as 1.048576e+06, and the service does not start with it."""
    numbers = {"EGRESS_MAX_MB_PER_DAY": 1048576, "SUB_AGENT_MAX_TOKENS": 20_000_000, "CONTAINER_MAX_AGE_HOURS": 0.5}
    values = {"settings": numbers, "secretSettings": numbers, "sandboxes": {"limits": {"diskMb": 2_000_000}}}
    objects = render(values)
    env = env_of(objects)
    assert {name: env[name] for name in numbers} == {name: str(value) for name, value in numbers.items()}
    assert env["SANDBOX_DISK_MB"] == "2000000"
    secret = by_kind(objects, "Secret", "rel-settings")["data"]
    assert {name: base64.b64decode(value).decode() for name, value in secret.items()} == {
        name: str(value) for name, value in numbers.items()
    }


def test_the_address_may_be_said_where_the_chart_cannot_know_it() -> None:
    """TLS may end before the cluster, or with the ingress controller's own certificate; a cluster may have IPv6 alone."""
    said = {"PUBLIC_BASE_URL": "https://tools.example.org", "HOST": "::"}
    ingress = {"enabled": True, "host": "tools.example.org"}
    assert env_of(render({"ingress": ingress}))["PUBLIC_BASE_URL"] == "http://tools.example.org"
    env = env_of(render({"ingress": ingress, "settings": said}))
    assert {name: env[name] for name in said} == said


_VERBS = {"apply": ("create", "patch"), "request": ()}


def requests_of_the_driver() -> set[tuple[str, str]]:
    """Each kind with each verb that the driver's sources have for it."""
    found: set[tuple[str, str]] = set()
    for path in (ROOT / "src/cubicle/drivers/kubernetes").glob("*.py"):
        text = path.read_text()
        kinds = dict(re.findall(r'^(_KIND) = "(\w+)"', text, re.MULTILINE))
        for verb, kind in re.findall(r'[ _]client\.(\w+)\(\s*(_KIND|"\w+")', text):
            found |= {(kinds.get(kind, kind.strip('"')), each) for each in _VERBS.get(verb, (verb,))}
        for kind in re.findall(r'Follower\(\w+, "(\w+)"', text):
            found |= {(kind, "list"), (kind, "watch")}
    return {(kind, verb) for kind, verb in found if kind not in ("GET", "POST")}


def test_the_service_may_do_what_the_driver_needs_and_no_more() -> None:
    role = by_kind(render(), "Role")
    allowed = {(kind, verb) for rule in role["rules"] for kind in rule["resources"] for verb in rule["verbs"]}
    assert allowed == requests_of_the_driver()
    asked = {(group, kind): set(verbs) for (group, kind), verbs in checks.RIGHTS.items()}  # by `cubicle doctor`
    assert asked == {(rule["apiGroups"][0], *rule["resources"]): set(rule["verbs"]) for rule in role["rules"]}
    plain = yaml.safe_load((ROOT / "deploy/kubernetes/role.yaml").read_text())
    assert role["rules"] == plain["rules"]
    kinds = {kind for rule in role["rules"] for kind in rule["resources"]}
    assert not kinds & {"secrets", "nodes", "pods/exec"}
    assert not [one for one in render(EVERYTHING) if one["kind"].startswith("Cluster")]
    binding = by_kind(render(EVERYTHING), "RoleBinding")
    assert binding["metadata"]["namespace"] == "boxes"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "rel", "namespace": "service"}]


def test_the_services_own_pod_is_of_pod_security_restricted() -> None:
    for pod in (pod_of(render()), by_kind(render(), "Pod")["spec"]):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not [volume for volume in pod.get("volumes", ()) if "hostPath" in volume]


def test_no_secret_is_in_the_pod_or_in_a_config_map() -> None:
    objects = render(
        {"secret": {"apiKey": "a-key-of-the-test"}, "secretSettings": {"ANTHROPIC_API_KEY": "sk-of-a-test"}}
    )
    for one in objects:
        if one["kind"] != "Secret":
            assert "a-key-of-the-test" not in json.dumps(one)
            assert "sk-of-a-test" not in json.dumps(one)


def test_a_secret_setting_that_is_taken_out_is_gone() -> None:
    """Of `stringData` an upgrade would remove nothing: the API server has long made `data` of it."""
    secrets = [one for one in render(EVERYTHING) if one["kind"] == "Secret"]
    assert not [one for one in secrets if "stringData" in one]
    (value,) = by_kind(secrets, "Secret", "rel-settings")["data"].values()
    assert base64.b64decode(value) == b"sk-of-a-test"


def test_the_guests_key_that_is_made_is_one_that_the_service_takes(tmp_path: Path) -> None:
    data = by_kind(render(), "Secret", "rel")["data"]
    (tmp_path / "key.pem").write_bytes(base64.b64decode(data["guest-key.pem"]))
    assert GuestKeys.load(tmp_path / "key.pem").keys[0].key_size == 2048
    assert len(base64.b64decode(data["api-key"])) == 40


def test_what_holds_files_and_keys_and_closes_sandboxes_outlives_the_release() -> None:
    """Sandboxes run on after an uninstall."""
    kept = {
        (one["kind"], one["metadata"]["name"])
        for one in render(EVERYTHING)
        if (one["metadata"].get("annotations") or {}).get("helm.sh/resource-policy") == "keep"
    }
    assert kept == {
        ("Namespace", "boxes"),
        ("NetworkPolicy", "rel-sandboxes"),
        ("PersistentVolumeClaim", "rel-files"),
        ("PersistentVolumeClaim", "rel-data"),
        ("Secret", "rel"),
    }


def test_the_network_policy_closes_sandboxes() -> None:
    plain = yaml.safe_load((ROOT / "deploy/kubernetes/network-policy.yaml").read_text())["spec"]
    spec = by_kind(render(), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == plain["policyTypes"]
    assert spec["egress"] == plain["egress"] == []
    (way,) = spec["ingress"]
    assert way["ports"] == [{"protocol": "TCP", "port": 8000}]
    assert [set(peer) for peer in way["from"]] == [{"podSelector"}]
    (apart,) = by_kind(render(EVERYTHING), "NetworkPolicy", "rel-sandboxes")["spec"]["ingress"]
    assert apart["from"][0]["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "service"}}


def test_the_pod_of_helm_test_reaches_the_service_whoever_else_may() -> None:
    objects = render(EVERYTHING)
    (way,) = by_kind(objects, "NetworkPolicy", "rel")["spec"]["ingress"]
    assert way["from"][0] == EVERYTHING["networkPolicy"]["from"][0]
    assert [{"podSelector": {"matchLabels": by_kind(objects, "Pod")["metadata"]["labels"]}}] == way["from"][1:]


def test_the_ingress_waits_long_and_buffers_nothing() -> None:
    ingress = by_kind(render(EVERYTHING), "Ingress")
    notes = ingress["metadata"]["annotations"]
    prefix = "nginx.ingress.kubernetes.io/proxy-"
    assert notes[f"{prefix}buffering"] == notes[f"{prefix}request-buffering"] == "off"
    assert notes[f"{prefix}body-size"] == "0"
    assert int(notes[f"{prefix}read-timeout"]) == int(notes[f"{prefix}send-timeout"]) == 12 * 3600
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == ["tools.example.org", "*.preview.example.net"]


def test_the_pod_has_more_time_than_the_drain_and_is_not_killed_meanwhile() -> None:
    for seconds in (20, 600):
        pod = pod_of(render({"drainSeconds": seconds}))
        assert pod["terminationGracePeriodSeconds"] >= seconds + 15
        probe = pod["containers"][0]["livenessProbe"]
        assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) > seconds


def test_the_administrators_pod_template_is_one_that_the_driver_takes(tmp_path: Path) -> None:
    objects = render(EVERYTHING)
    file = tmp_path / "pod.yaml"
    file.write_text(by_kind(objects, "ConfigMap", "rel-pod")["data"]["pod.yaml"])
    assert read_extra(file) == EVERYTHING["sandboxes"]["podTemplate"]
    mounts = {mount["mountPath"] for mount in pod_of(objects)["containers"][0]["volumeMounts"]}
    env = env_of(objects)
    assert env["KUBERNETES_POD_TEMPLATE"] in mounts
    assert env["EGRESS_RULES_FILE"] == "/etc/cubicle/files/EGRESS_RULES_FILE"
    assert {"/etc/cubicle/files", "/etc/cubicle/secret"} <= mounts


def test_several_replicas_have_numbers_a_secret_and_a_port_of_their_own() -> None:
    objects = render(SEVERAL)
    found = by_kind(objects, "StatefulSet")["spec"]
    assert found["replicas"] == 3
    assert "strategy" not in found
    assert env_of(objects)["REPLICAS"] == "3"
    pod = found["template"]["spec"]
    assert {"name": "members", "containerPort": 8082} in pod["containers"][0]["ports"]
    secret = next(volume["secret"] for volume in pod["volumes"] if volume["name"] == "secret")
    assert [item["path"] for item in secret["items"]] == ["guest-key.pem", "member-secret"]
    assert env_of(objects)["MEMBER_SECRET_FILE"] == "/etc/cubicle/secret/member-secret"
    outside, members = by_kind(objects, "NetworkPolicy", "rel")["spec"]["ingress"]
    assert outside == {"ports": [{"protocol": "TCP", "port": 8081}]}
    assert members["from"] == [{"podSelector": found["selector"]}]
    assert by_kind(objects, "PodDisruptionBudget", "rel")["spec"]["maxUnavailable"] == 1


def test_the_secret_of_replicas_is_changed_line_by_line(tmp_path: Path) -> None:
    lines = "the-new-secret-of-the-test\nthe-old-secret-of-the-test\n"
    data = by_kind(render(merged(SEVERAL, {"secret": {"memberSecret": lines}})), "Secret", "rel")["data"]
    (tmp_path / "members").write_bytes(base64.b64decode(data["member-secret"]))
    assert len(HopKeys(file=tmp_path / "members").believed) == 2
    assert "memberSecret" in refusal(merged(REQUIRED, {"secret": {"memberSecret": "long-enough-to-be-one\nshort"}}))


def test_prometheus_asks_each_replica_for_its_own_metrics() -> None:
    """Each would tell of all, and every sum be three times too large."""
    watched = {"metrics": {"serviceMonitor": {"enabled": True}}}
    (several,) = by_kind(render(merged(SEVERAL, watched)), "ServiceMonitor")["spec"]["endpoints"]
    assert several["params"] == {"own": ["1"]}
    (alone,) = by_kind(render(watched), "ServiceMonitor")["spec"]["endpoints"]
    assert "params" not in alone


def test_one_replica_is_alone() -> None:
    objects = render()
    assert by_kind(objects, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert not {"REPLICAS", "MEMBER_SECRET_FILE"} & set(env_of(objects))
    assert len([one for one in objects if one["kind"] == "Service"]) == 1


def test_an_autoscaler_has_room_for_as_many_replicas_as_it_may_make() -> None:
    objects = render({**SEVERAL, "autoscaling": {"enabled": True, "maxReplicas": 9}})
    assert "replicas" not in by_kind(objects, "StatefulSet")["spec"]
    assert by_kind(objects, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["kind"] == "StatefulSet"
    assert env_of(objects)["REPLICAS"] == "9"


def test_older_clusters_get_the_versions_that_they_have() -> None:
    def versions(version: str) -> set[str]:
        objects = render(EVERYTHING, "--kube-version", version)
        return {
            one["apiVersion"] for one in objects if one["kind"] in ("PodDisruptionBudget", "HorizontalPodAutoscaler")
        }

    assert versions("1.20.2") == {"policy/v1beta1", "autoscaling/v2beta2"}
    assert versions("1.31.0") == {"policy/v1", "autoscaling/v2"}
