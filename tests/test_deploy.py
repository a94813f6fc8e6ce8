"""What is shipped for docker compose says what the documents promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yml").read_text())
    return found


def test_only_the_service_holds_the_engines_socket(compose: dict[str, Any]) -> None:
    holders = [
        name
        for name, service in compose["services"].items()
        if any("docker.sock" in volume for volume in service.get("volumes", []))
    ]
    assert holders == ["service"]


def test_the_service_starts_with_a_key_and_for_this_machine_alone(compose: dict[str, Any]) -> None:
    service = compose["services"]["service"]
    assert service["environment"]["MCP_API_KEY"].startswith("${MCP_API_KEY:?")
    assert service["ports"] == ["${BIND:-127.0.0.1}:${PORT:-8081}:${PORT:-8081}"]
    assert service["cap_drop"] == ["ALL"]


def test_the_data_lies_at_one_path_inside_and_outside(compose: dict[str, Any]) -> None:
    service = compose["services"]["service"]
    mount = next(v for v in service["volumes"] if "cubicle" in v)
    outside, inside = mount[: len(mount) // 2], mount[len(mount) // 2 + 1 :]
    assert outside == inside
    assert service["environment"]["DATA_DIR"].startswith(f"{inside}/")


def test_the_files_that_it_builds_from_are_there(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        context = (ROOT / "deploy" / service["build"]["context"]).resolve()
        assert (context / service["build"]["dockerfile"]).resolve().is_file()
