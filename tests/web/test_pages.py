"""The pages: their unit tests pass, what is built is what their sources build, and their types are the models'."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import absent
from tests.support import web_types

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
BUILT = ROOT / "src" / "cubicle" / "http_api" / "static"


def run(program: str, *arguments: str, **environment: str) -> None:
    """Run a program of web/node_modules; what it prints is the message of the failure."""
    installed = WEB / "node_modules" / ".bin" / program
    if not installed.exists():
        absent("needs the packages of web/: scripts/web")
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    result = subprocess.run(
        [installed, *arguments],
        cwd=WEB,
        env={**os.environ, "PATH": path, "NO_COLOR": "1", "CI": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stdout.decode(errors="replace")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_unit_tests_of_the_pages_pass() -> None:
    run("vitest", "run")


@pytest.mark.real
def test_what_is_built_is_what_the_sources_build(tmp_path: Path) -> None:
    run("vite", "build", "--logLevel", "warn", CUBICLE_STATIC=str(tmp_path))
    fresh, kept = contents(tmp_path), contents(BUILT)
    assert len(fresh) > 50
    changed = {name for name in fresh.keys() | kept.keys() if fresh.get(name) != kept.get(name)}
    assert changed == set(), "web/ was changed without its build. Run: web/build.sh"


def test_the_types_of_the_pages_are_those_of_the_models() -> None:
    assert web_types.stale() == [], "run: scripts/web-types"


def test_a_type_that_typescript_has_no_name_for_is_refused() -> None:
    with pytest.raises(TypeError, match="No TypeScript type"):
        web_types.Printer({}).type(set[int])
