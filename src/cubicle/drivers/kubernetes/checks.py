"""What `cubicle doctor` looks at in a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cubicle.drivers.common.checks import Check, Verdict
from cubicle.drivers.kubernetes.client import KubernetesClient
from cubicle.drivers.kubernetes.cluster import Cluster
from cubicle.machine.errors import SandboxError, Unusable
from cubicle.settings_kubernetes import PodFiles

RIGHTS = {
    ("", "pods"): ("create", "get", "list", "watch", "patch", "delete"),
    ("", "persistentvolumeclaims"): ("create", "get", "patch", "delete"),
    ("", "configmaps"): ("create", "list", "patch", "delete"),
    ("apps", "deployments"): ("create", "get", "patch"),
    ("coordination.k8s.io", "leases"): ("create", "get", "list", "patch", "delete"),
}
_TOO_MUCH = (("", "secrets", "get"), ("", "pods/exec", "create"))
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


async def run(find_cluster: Callable[[], Cluster], image: str, files: PodFiles, claim: str) -> list[Check]:
    """Each thing that the driver needs, from the outside in; what depends on a missing one is not looked at."""
    named = Check("sandbox image", Verdict.GOOD, image)
    if not image:
        fix = "cubicle image export standard --oci, push it, and set KUBERNETES_IMAGE"
        named = Check("sandbox image", Verdict.MISSING, "KUBERNETES_IMAGE is not set", fix)
    try:
        cluster = await asyncio.to_thread(find_cluster)
    except Unusable as error:
        return [named, Check("cluster", Verdict.MISSING, str(error), "set KUBECONFIG")]
    client = KubernetesClient(cluster)
    try:
        version = await client.request("GET", "/version")
        found = [
            named,
            Check("cluster", Verdict.GOOD, f"{cluster.server}, {version.get('gitVersion', 'of some version')}"),
        ]
        found.append(await _rights(client))
        if files is PodFiles.SHARED:
            found.append(await _claim(client, claim))
    except SandboxError as error:
        found = [named, Check("cluster", Verdict.MISSING, str(error), "see that the service reaches the API server")]
    finally:
        await client.close()
    return found


async def _rights(client: KubernetesClient) -> Check:
    asked = [(group, kind, verb) for (group, kind), verbs in RIGHTS.items() for verb in verbs]
    allowed = await asyncio.gather(*(_may(client, *right) for right in (*asked, *_TOO_MUCH)))
    lacking = [f"{verb} {kind}" for (_, kind, verb), may in zip(asked, allowed, strict=False) if not may]
    if lacking:
        fix = "kubectl apply -f deploy/kubernetes/role.yaml, and bind it"
        return Check("rights", Verdict.MISSING, f"the service may not: {', '.join(lacking)}", fix)
    beyond = [f"{verb} {kind}" for (_, kind, verb), may in zip(_TOO_MUCH, allowed[len(asked) :], strict=True) if may]
    if beyond:
        fix = "give it the Role of deploy/kubernetes/role.yaml alone"
        return Check("rights", Verdict.WEAK, f"the service may more than it needs: {', '.join(beyond)}", fix)
    return Check("rights", Verdict.GOOD, "what the driver needs, and neither secrets nor pods/exec")


async def _may(client: KubernetesClient, group: str, kind: str, verb: str) -> bool:
    resource, _, part = kind.partition("/")
    namespace = client.cluster.namespace
    asked = {"namespace": namespace, "group": group, "resource": resource, "subresource": part, "verb": verb}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = await client.request("POST", _REVIEWS, body)
    return bool((answer.get("status") or {}).get("allowed"))


async def _claim(client: KubernetesClient, name: str) -> Check:
    found = await client.get("persistentvolumeclaims", name)
    if found is None:
        fix = "make a ReadWriteMany claim of this name"
        return Check("files", Verdict.MISSING, f"there is no claim {name} in {client.cluster.namespace}", fix)
    modes, phase = found["spec"].get("accessModes") or [], (found.get("status") or {}).get("phase", "")
    if "ReadWriteMany" not in modes:
        return Check(
            "files", Verdict.WEAK, f"{name} is {', '.join(modes)}: all sandboxes are on one node", "ReadWriteMany"
        )
    return Check("files", Verdict.GOOD, f"{name}, {phase.lower() or 'pending'}")
