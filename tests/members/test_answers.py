"""What clients are told when nobody can say who owns a chat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.kubernetes.client import KubernetesClient
from cubicle.drivers.kubernetes.cluster import Cluster
from cubicle.drivers.kubernetes.members import LeaseRecords
from cubicle.http_api.forwarding import Forwarder
from cubicle.members.hop_keys import HopKeys
from cubicle.members.owners import Owners


async def test_a_client_is_told_nothing_of_the_cluster(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither where its API server is nor which file has the token; its operator is."""
    cluster = Cluster("http://127.0.0.1:1", None, "test", token_file=tmp_path / "token")
    records = LeaseRecords(lambda: cluster, "small", slot=1, address="127.0.0.1", port=0)
    records._client = KubernetesClient(cluster)
    forwarder, sent = Forwarder(Owners(records), HopKeys(b"s" * 32)), list[Any]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def answer() -> str:
        sent.clear()
        scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "headers": []}
        assert await forwarder(scope, receive, send, Chat("one"))
        assert sent[0]["status"] == 503
        return str(json.loads(sent[1]["body"])["detail"])

    try:
        assert await answer() == "The records of members cannot be used at present."
        assert str(tmp_path / "token") in caplog.text
        (tmp_path / "token").write_text("secret")
        assert await answer() == "The records of members cannot be used at present."
        assert "127.0.0.1:1" in caplog.text
    finally:
        forwarder.close()
        await records._client.close()
