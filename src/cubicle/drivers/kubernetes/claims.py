"""A volume claim for each sandbox, where they do not share one."""

from __future__ import annotations

from cubicle.drivers.kubernetes import template
from cubicle.drivers.kubernetes.client import KubernetesClient
from cubicle.drivers.kubernetes.objects import APP, INSTANCE, SANDBOX
from cubicle.drivers.kubernetes.template import PodTerms
from cubicle.machine.errors import SandboxError
from cubicle.settings_kubernetes import PodFiles

_KIND = "persistentvolumeclaims"
_TRIES = 5


class Claims:
    """Does nothing where sandboxes share a claim."""

    def __init__(self, client: KubernetesClient, terms: PodTerms) -> None:
        self._client = client
        self._terms = terms
        self._own = terms.files is PodFiles.CLAIM

    async def ensure(self, sandbox: str) -> None:
        """There is a claim for a pod that the service makes itself."""
        if self._own:
            labels = {APP: "cubicle-files", INSTANCE: self._terms.instance, SANDBOX: sandbox}
            body = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": template.claim_name(sandbox), "labels": labels},
                "spec": template.claim_spec(self._terms),
            }
            await self._client.create(_KIND, body)

    async def keep(self, sandbox: str) -> None:
        """Have the claim outlive its pod: that of a blank one is the pod's own. Raises SandboxError if it may not."""
        if not self._own:
            return
        for _ in range(_TRIES):
            found = await self._client.get(_KIND, template.claim_name(sandbox))
            if found is None or not found["metadata"].get("ownerReferences"):
                return
            meta = {"resourceVersion": found["metadata"]["resourceVersion"], "ownerReferences": None}
            if await self._client.patch(_KIND, found["metadata"]["name"], {"metadata": meta}) is not None:
                return
        raise SandboxError("The sandbox's volume claim is being changed by somebody else.")
