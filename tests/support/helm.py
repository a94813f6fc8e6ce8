"""Helm, as the tests of the chart call it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import absent

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "cubicle"
REQUIRED = {
    "image": {"repository": "registry.example.net/cubicle"},
    "sandboxes": {"image": "registry.example.net/sandbox@sha256:" + "0" * 64},
}


def program() -> str:
    """The one of the development set; Helm comes in no package for other machines."""
    found = shutil.which("helm", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None and platform.machine() != "x86_64":
        pytest.skip("this kind of machine has no package of Helm")
    if found is None:
        absent("needs helm: scripts/environment dev")
    return str(found)


def helm(*words: str, values: dict[str, Any] | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """One run; `values` are added to those of the chart."""
    argv = [program(), *words, *(["-f", "-"] if values is not None else [])]
    told = None if values is None else json.dumps(values)
    done = subprocess.run(argv, input=told, capture_output=True, text=True, timeout=1200, check=False)
    assert not check or done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """As Helm adds values to values."""
    whole = dict(values)
    for name, value in more.items():
        old = whole.get(name)
        whole[name] = merged(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return whole


def render(values: dict[str, Any] | None = None, *words: str) -> list[dict[str, Any]]:
    """The objects that the chart makes of the values that it must have, and these."""
    argv = ("template", "rel", str(CHART), "--namespace", "service", *words)
    said = helm(*argv, values=merged(REQUIRED, values or {})).stdout
    return [one for one in yaml.safe_load_all(said) if one]


def refusal(values: dict[str, Any]) -> str:
    """Why the chart does not take these values."""
    done = helm("template", "rel", str(CHART), values=values, check=False)
    assert done.returncode != 0, "the chart takes these values"
    return done.stderr
