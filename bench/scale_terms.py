"""What the processes of bench/scale.py agree on."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from cubicle.drivers.kubernetes.cluster import Cluster, find_cluster
from cubicle.drivers.kubernetes.driver import KubernetesDriver
from cubicle.drivers.kubernetes.template import PodTerms
from cubicle.sandbox.driver import SandboxLimits


def owner(number: int) -> str:
    """Of the chat of this number."""
    return f"{number:032x}"


@dataclass(frozen=True)
class Terms:
    """One run."""

    namespace: str
    label: str
    """Of the fake nodes: what their names begin with."""
    folder: str
    chats: int
    blank: int
    rate: float
    seconds: float
    instance: str = "scale"

    @classmethod
    def of(cls, told: str) -> Self:
        return cls(**json.loads(told))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def pods(self) -> PodTerms:
        """Sandboxes that are bound to the fake nodes alone."""
        spec = {
            "nodeSelector": {"cubicle.dev/fake": self.label},
            "tolerations": [{"key": "cubicle.dev/fake", "operator": "Exists", "effect": "NoSchedule"}],
        }
        limits = SandboxLimits(memory_bytes=1024**3)
        return PodTerms(instance=self.instance, image="none.invalid/fake:1", limits=limits, extra={"spec": spec})

    def cluster(self) -> Cluster:
        """As the service: with its own rights, and in the queue of the API server that everybody is in."""
        folder = os.environ.get("CUBICLE_KUBERNETES_FOLDER")
        file = Path(folder) / "service.kubeconfig" if folder else Path(os.environ["KUBECONFIG"])
        return find_cluster(file, "", "", self.namespace)

    def driver(self, *, pool_size: int) -> KubernetesDriver:
        return KubernetesDriver(self.cluster, Path(self.folder) / "guest-key.pem", self.pods, pool_size=pool_size)
