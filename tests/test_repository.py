"""Gates of the repository itself: sizes, pins, pages that are printed from the code, what the guest may use."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from cubicle.cli.settings import markdown, rows

ROOT = Path(__file__).parent.parent
MAX_LENGTH = 450

NAMES = ("debian", "ubuntu", "pypi", "npmjs", "pythonhosted")
# Each name carries an empty group, so that this file passes its own gate.
REGISTRIES = re.compile(
    rf"https?://[a-z.-]*(?:{'|'.join(NAMES)})\."
    r"|\b(?:deb|security|snapshot|ftp)\.debi()an\.org|\bpy()pi\.org|\bregistry\.npm()js\.org"
)
FOREIGN = re.compile(r"(?<![\w.~-])/(?:wo()rk|fa()rm|tmp/w()t|ro()ot/\.[a-z]+|home/(?!assistant\b)[a-z]+)/")


@cache
def files() -> tuple[Path, ...]:
    """Every file of the repository, those not yet added included."""
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=30).stdout.decode()
    paths = (Path(name) for name in sorted(set(listing.split("\0"))) if name)
    return tuple(path for path in paths if (ROOT / path).is_file() and not (ROOT / path).is_symlink())


def text(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def under(folder: str, *suffixes: str) -> list[Path]:
    return [path for path in files() if path.is_relative_to(folder) and path.suffix in suffixes]


def test_no_source_file_is_too_long() -> None:
    sources = under("src", ".py", ".ts", ".tsx") + under("web", ".ts", ".tsx")
    lengths = {str(path): text(path).count("\n") for path in sources}
    assert len(lengths) > 10
    assert {name: length for name, length in lengths.items() if length > MAX_LENGTH} == {}


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = []
    for path in files():
        try:
            content = text(path)
        except UnicodeDecodeError:
            continue
        # Plain words are found a hundred times sooner than a pattern, and most files have none of them.
        for pattern in (REGISTRIES, FOREIGN) if any(name in content for name in NAMES) else (FOREIGN,):
            found += [f"{path}:{content.count(chr(10), 0, m.start()) + 1}: {m[0]}" for m in pattern.finditer(content)]
    assert found == []


@pytest.mark.parametrize("line", ["http://deb.debian" + ".org/x", "cd /wo" + "rk/main", "pypi" + ".org/simple"])
def test_the_gate_sees_what_it_is_for(line: str) -> None:
    assert REGISTRIES.search(line) or FOREIGN.search(line)


@pytest.mark.parametrize(
    "line", ["/".join(("/home/assistant", "work", "a")), "/".join(("~", "work", "b")), "/var/lib/cubicle/data", "pypi"]
)
def test_the_gate_lets_the_rest_pass(line: str) -> None:
    assert not REGISTRIES.search(line)
    assert not FOREIGN.search(line)


def test_the_page_of_settings_is_current() -> None:
    assert text("docs/settings.md") == markdown(), "run: make docs"


def test_every_setting_is_described() -> None:
    assert [row.name for row in rows() if not row.meaning.endswith(".")] == []


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_names(lines: list[str]) -> set[str]:
    return {normal(match[0]) for line in lines if (match := re.match(r"[A-Za-z0-9][\w.-]*", line))}


def pins(path: str) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9][\w.-]*)==([^\s;]+)", text(path), re.MULTILINE)
    return {normal(name): version for name, version in found}


def declared() -> tuple[set[str], set[str]]:
    project = tomllib.loads(text("pyproject.toml"))
    served = requirement_names(project["project"]["dependencies"])
    return served, requirement_names(project["dependency-groups"]["dev"])


def test_the_page_of_dependencies_names_each_with_its_reason() -> None:
    served, developed = declared()
    found = re.findall(r"^\| `([^`]+)` \| (.+) \|$", text("docs/dependencies.md"), re.MULTILINE)
    assert {normal(name) for name, _ in found} == served | developed
    assert [name for name, reason in found if len(reason.split()) < 4] == []


def test_every_dependency_is_pinned() -> None:
    served, developed = declared()
    assert served - pins("requirements.txt").keys() == set(), "run: make lock"
    assert (served | developed) - pins("requirements-dev.txt").keys() == set(), "run: make lock"


def test_tests_run_on_the_versions_that_serve() -> None:
    developed = pins("requirements-dev.txt")
    assert {name: version for name, version in pins("requirements.txt").items() if developed[name] != version} == {}


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt", "requirements-setup.txt"])
def test_every_pin_has_a_hash(name: str) -> None:
    blocks = re.split(r"\n(?=\S)", text(name).strip())
    assert len(blocks) == len(pins(name)) > 5
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []


@pytest.mark.parametrize("path", under("src/cubicle/guest", ".py"), ids=str)
def test_the_guest_is_python_3_9_and_standard_library_only(path: Path) -> None:
    tree = ast.parse(text(path), str(path), feature_version=(3, 9))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.add(node.module or "")
    strangers = {
        name
        for name in imported
        if name.split(".")[0] not in sys.stdlib_module_names and not f"{name}.".startswith("cubicle.guest.")
    }
    assert strangers == set()


def test_the_guest_gate_refuses_newer_syntax() -> None:
    with pytest.raises(SyntaxError):
        ast.parse("match 1:\n    case 1: pass\n", feature_version=(3, 9))


def test_the_pages_link_to_files_that_exist() -> None:
    broken = []
    for path in under("", ".md"):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text(path)):
            if "://" not in target and not (ROOT / path.parent / target).exists():
                broken.append(f"{path}: {target}")
    assert broken == []


def test_ci_runs_what_a_person_runs() -> None:
    assert text(".ci/run").rstrip().endswith("exec make test")


@pytest.mark.parametrize("path", [path for path in files() if path.parts[0] in ("scripts", ".ci")], ids=str)
def test_scripts_parse_and_can_be_run(path: Path) -> None:
    assert (ROOT / path).stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(ROOT / path)], check=True, timeout=60)
