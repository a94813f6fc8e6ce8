"""The official conformance suite, in its release and in the coming one."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cubicle.journal.journal import Journal
from tests.clients.conftest import HERE, Node
from tests.clients.fixture_tools import FIXTURES
from tests.support.service import Options, Service, fleet_of, service_of

RELEASE = "node_modules/@modelcontextprotocol/conformance/dist/index.js"
NEXT = "node_modules/conformance-next/dist/index.js"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """One with a journal, without which there are no tasks, and with the tools that the scenarios of tasks call."""
    async with fleet_of(tmp_path / "fleet") as fleet, Journal(tmp_path / "journal") as journal:
        options = Options({"allowed_hosts": "127.0.0.1,localhost"}, journal=journal, tools=FIXTURES)
        async with service_of(fleet, options) as service:
            yield service


SUITES = pytest.mark.parametrize(
    ("suite", "arguments", "expected"),
    [
        (RELEASE, ["--suite", "all"], "expected-0.1.yml"),
        (NEXT, ["--requirements", "2025-11-25"], "expected-0.2-2025-11-25.yml"),
        (NEXT, ["--requirements", "2026-07-28"], "expected-0.2-2026-07-28.yml"),
    ],
    ids=["0.1", "0.2-2025-11-25", "0.2-2026-07-28"],
)


@pytest.mark.real
@pytest.mark.timeout(600)
@SUITES
async def test_nothing_fails_but_what_needs_fixtures(
    service: Service, node: Node, suite: str, arguments: list[str], expected: str
) -> None:
    """A scenario of the list that passes fails this test as well: the list holds nothing that is not needed."""
    code, output = await node(
        suite, "server", "--url", f"{service.url}/mcp", *arguments, "--expected-failures", expected, limit=500
    )
    assert code == 0, output[-3000:]
    assert "✓ tools-list" in output
    assert "✓ dns-rebinding-protection" in output


@pytest.mark.real
@SUITES
def test_every_expected_failure_names_a_fixture_of_the_suite(
    node: Node, suite: str, arguments: list[str], expected: str
) -> None:
    source = (HERE / suite).read_text()
    entries = [line for line in (HERE / expected).read_text().splitlines() if line.startswith("  - ")]
    assert entries
    for entry in entries:
        found = re.fullmatch(r"  - [a-z0-9-]+  # fixture: (.+)", entry)
        assert found, f"an entry without its fixture: {entry}"
        names = re.findall(r"test://[a-z-]+|[a-z0-9]+(?:_[a-z0-9]+)+|x-mcp-header|\bgreet\b", found[1])
        assert names, entry
        assert [name for name in names if name not in source] == [], entry
