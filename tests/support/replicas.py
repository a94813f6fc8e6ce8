"""Replicas of the service on a real cluster, as processes of this machine over one DATA_DIR."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.drivers.kubernetes import cluster
from tests.drivers.kubernetes.cluster import kubectl
from tests.support.members import answer_of
from tests.support.process import ACCEPT, ServiceProcess, free_port


class Replica(ServiceProcess):
    """One of three, over the same DATA_DIR."""

    is_ready = False

    async def call(self, chat: str, command: str, key: str) -> httpx.Response:
        arguments = {"command": command, "description": "test", "timeout": 600}
        params = {"name": "bash_tool", "arguments": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        headers = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": chat, "Idempotency-Key": key}
        return await self.client.post("/mcp", content=body, headers=headers, timeout=600)

    async def text(self, chat: str, command: str) -> str:
        return text_of(await self.call(chat, command, uuid.uuid4().hex))


def text_of(answer: httpx.Response) -> str:
    result = answer_of(answer)["result"]
    assert not result["isError"], result
    return str(result["content"][0]["text"])


@asynccontextmanager
async def replicas(folder: Path, count: int = 3, **more: str) -> AsyncIterator[list[Replica]]:
    ours = await asyncio.to_thread(cluster.test_cluster)
    data, secret, instance = folder / "data", folder / "secret", f"r{uuid.uuid4().hex[:8]}"
    await asyncio.to_thread(data.mkdir)
    await asyncio.to_thread(secret.write_text, uuid.uuid4().hex + uuid.uuid4().hex)
    environment = {
        "DRIVER": "kubernetes",
        "KUBECONFIG": str(ours.kubeconfig),
        "KUBERNETES_NAMESPACE": ours.namespace,
        "KUBERNETES_INSTANCE": instance,
        "KUBERNETES_IMAGE": ours.image,
        "SANDBOX_MEMORY_MB": "512",
        "POOL_SIZE": "2",
        "EGRESS": "none",
        "REPLICAS": str(count),
        "MEMBER_HOST": "127.0.0.1",
        "MEMBER_SECRET_FILE": str(secret),
        "RESUME_SECONDS": "600",
        "DRAIN_SECONDS": "30",
    }
    found = []
    for slot in range(1, count + 1):
        own = {"MEMBER_SLOT": str(slot), "MEMBER_PORT": str(free_port())}
        found.append(Replica(data, **environment, **own, **more))
    try:
        await found[0].start()
        await asyncio.gather(*(each.start() for each in found[1:]))
        for each in found:
            each.is_ready = True
        yield found
    finally:
        for each in found:
            each.kill()
            await each.client.aclose()
        made = ("deployments,pods,leases,configmaps", "-l", f"app.kubernetes.io/instance={instance}")
        words = ("-n", ours.namespace, "delete", *made, "--wait=false")
        await asyncio.to_thread(kubectl, *words, check=False)
