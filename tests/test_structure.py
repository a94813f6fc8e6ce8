"""Gates on how the sources hang together: no import circle, no task without an owner, no long function."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"
MAX_LINES = 60
MAX_LINES_OF_MOST = 20
"""Lines of a function; the second one holds for nine of ten."""
ANYIO_GROUPS = {
    # A cancel scope ends what is done with a token when the token ends; asyncio has no such thing.
    "cubicle.agents.gateway",
    "cubicle.agents.live_tokens",
}
"""All others use asyncio.TaskGroup."""


@cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for path in sorted(SOURCES.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text("utf-8"), str(path))
    return found


def imports(name: str, tree: ast.Module) -> set[str]:
    """The modules of ours that a module imports: anywhere in it, for type checking included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = _source(name, node)
            found |= {inner if (inner := f"{source}.{alias.name}") in modules() else source for alias in node.names}
    return (found & modules().keys()) - {name}


def _source(name: str, node: ast.ImportFrom) -> str:
    """The module that is imported from; the guest's imports are relative, and none is in an `__init__`."""
    if not node.level:
        return str(node.module)
    folder = ".".join(name.split(".")[: -node.level])
    return f"{folder}.{node.module}" if node.module else folder


def circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    graph = {name: imports(name, tree) for name, tree in modules().items()}
    assert len(graph) > 200
    assert circle(graph) == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})


def test_type_checking_imports_count() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from cubicle.core.chat import Chat\n"
    assert imports("cubicle.x", ast.parse(source)) == {"cubicle.core.chat"}


def bare_tasks(name: str, tree: ast.Module) -> Iterator[str]:
    """Calls that make a task which no group owns."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
            continue
        called = ast.unparse(node.func)
        if re.search(r"(^|\.)(create_task|ensure_future)$", called) and not re.fullmatch(
            r"(self\._)?group\.create_task", called
        ):
            yield f"{name}:{node.lineno}: {called}"


def test_tasks_are_made_by_a_group_or_by_the_one_helper() -> None:
    found = [made for name, tree in modules().items() for made in bare_tasks(name, tree)]
    assert [made.split(":")[0] for made in found] == ["cubicle.tasks"], found


@pytest.mark.parametrize("made", ["asyncio.create_task(x())", "loop.create_task(x())", "asyncio.ensure_future(x())"])
def test_a_bare_task_is_found(made: str) -> None:
    assert list(bare_tasks("m", ast.parse(made)))


def test_what_is_called_a_group_is_one() -> None:
    """The gate above goes by the name."""
    for name, tree in modules().items():
        made = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        if any(re.fullmatch(r"(self\._)?group\.create_task", called) for called in made):
            assert "asyncio.TaskGroup" in ast.unparse(tree), name


def test_a_task_that_is_started_is_kept_by_its_starter() -> None:
    lost = [
        f"{name}:{node.lineno}"
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).endswith("start_task")
    ]
    assert lost == []


def test_task_groups_are_those_of_asyncio() -> None:
    used = {name for name, tree in modules().items() if "anyio.create_task_group" in ast.unparse(tree)}
    assert used == ANYIO_GROUPS


def lengths() -> dict[str, int]:
    return {
        f"{name}.{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_functions_are_short() -> None:
    found = lengths()
    ordered = sorted(found.values())
    assert ordered[len(ordered) * 9 // 10] <= MAX_LINES_OF_MOST
    assert {name: size for name, size in found.items() if size > MAX_LINES} == {}
