"""The official conformance suite, in its release and in the coming one."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Node
from tests.service import Service

RELEASE = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
NEXT = "node_modules/conformance-next/dist/index.js"


@pytest.mark.real
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("suite", "arguments", "expected"),
    [
        (RELEASE, ["--suite", "all"], "expected-0.1.yml"),
        (NEXT, ["--requirements", "2025-11-25"], "expected-0.2-2025-11-25.yml"),
        (NEXT, ["--requirements", "2026-07-28"], "expected-0.2-2026-07-28.yml"),
    ],
    ids=["0.1", "0.2-2025-11-25", "0.2-2026-07-28"],
)
async def test_nothing_fails_but_what_needs_fixtures(
    service: Service, node: Node, suite: str, arguments: list[str], expected: str
) -> None:
    """A scenario of the list that passes fails this test as well: the list holds nothing that is not needed."""
    code, output = await node(
        suite, "server", "--url", f"{service.url}/mcp", *arguments, "--expected-failures", expected, limit=180
    )
    assert code == 0, output[-3000:]
    assert "✓ tools-list" in output
    assert "✓ dns-rebinding-protection" in output
