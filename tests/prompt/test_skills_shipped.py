"""Every skill that ships runs its own example in a sandbox, and says what is missing where it cannot."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from cubicle.chat.links import Links
from cubicle.core.caller import Caller
from cubicle.core.chat import Chat
from cubicle.core.keys import KeyRing
from cubicle.drivers.memory import MemoryDriver
from cubicle.prompt.catalogue import SkillCatalogue, shipped_folder
from cubicle.prompt.provision import Provisioner
from cubicle.prompt.skills import Source, read_skill
from cubicle.prompt.system_prompt import SystemPrompt
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from tests.conftest import absent

NAMES = (
    "charts",
    "data-analysis",
    "documents",
    "pdf",
    "skill-writing",
    "slides",
    "spreadsheets",
    "sub-agent-delegation",
    "web-app-testing",
    "web-scraping",
)
TOOLS = {"pdf": ("chromium", "pdfunite"), "web-app-testing": ("chromium",)}
NEEDS_THE_IMAGE = {"web-scraping"}
SYSTEM_PYTHON_IS_ENOUGH = {"charts", "data-analysis", "skill-writing", "sub-agent-delegation"}
CHAT = Chat("skills")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("skills")


@pytest.fixture(scope="module")
async def machine(folder):
    """One sandbox for all."""
    driver = MemoryDriver(folder / "sandboxes")
    library = SkillCatalogue()
    provisioner = Provisioner(library, SystemPrompt(library, Links(b"s" * 32, "http://x", KeyRing({}))))
    async with Fleet(driver, ChatIndex(folder / "ledger"), pool_size=0) as fleet:
        async with fleet.lease(CHAT) as machine:
            await provisioner.prepare(machine, Caller(CHAT))
            yield machine
        await fleet.remove(CHAT)


@pytest.fixture(scope="module")
def packages(folder, machine):
    """The packages of the tests in the sandbox: they are those that the full image has. Where they are there."""
    there = folder / "sandboxes" / "memory" / machine.name / "home" / "packages"
    # What other workers are compiling just now bears a name of its own until it is whole.
    unfinished = shutil.ignore_patterns("*.pyc.*")
    shutil.copytree(sysconfig.get_path("purelib"), there, symlinks=True, ignore=unfinished, copy_function=link_or_copy)
    return "/home/assistant/packages"


def link_or_copy(source, target, **_options):
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def python_of_all() -> str:
    """A Python that the sandbox's user may start, of the version that the packages are built for."""
    names = (f"python3.{sys.version_info.minor}", str(Path(sys.executable).resolve()))
    for path in (shutil.which(name, path="/usr/bin:/usr/local/bin") for name in names):
        if path:
            return path
    return names[1]


def test_these_are_the_skills():
    assert tuple(sorted(path.name for path in shipped_folder().iterdir() if path.is_dir())) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_is_well_formed_by_its_own_and_by_our_rules(name):
    skill = read_skill(shipped_folder() / name, Source.PUBLIC)
    assert {"SKILL.md", "scripts/example.py"} <= {file.path for file in skill.files}
    assert "Use " in skill.description
    text = (shipped_folder() / name / "SKILL.md").read_text()
    assert f"/mnt/skills/public/{name}/scripts/example.py" in text
    assert text.count("\n") < 120


@pytest.mark.long  # test_skills_in_image.py runs them in the true images
@pytest.mark.real
@pytest.mark.parametrize("name", [n for n in NAMES if n not in NEEDS_THE_IMAGE])
async def test_its_example_runs_in_a_sandbox(name, machine, packages):
    for tool in TOOLS.get(name, ()):
        if not shutil.which(tool):
            absent(f"needs {tool}: scripts/packages test")
    python = f"PYTHONPATH={packages} {python_of_all()} -B"
    command = f"{python} /mnt/skills/public/{name}/scripts/example.py /home/assistant/{name}"
    end, output = await machine.output(command, timeout=100)
    assert end.code == 0, output.decode()
    assert output.decode().splitlines()[-1].startswith("ok ")


@pytest.mark.parametrize("name", NAMES)
async def test_where_a_tool_is_missing_it_says_so_and_how_to_get_it(name, machine):
    """The system's Python alone (-S -E: none of its packages either), and no browser."""
    script = f"/mnt/skills/public/{name}/scripts/example.py"
    link = "mkdir -p bare && ln -sf /bin/bash /bin/test bare/"
    command = f"{link} && PATH=$PWD/bare /usr/bin/python3 -S -E -B {script} /home/assistant/bare-{name}"
    end, output = await machine.output(command, timeout=60)
    if name in SYSTEM_PYTHON_IS_ENOUGH:
        assert end.code == 0, output.decode()
    else:
        assert end.code == 3, output.decode()
        assert "in this image" in output.decode() or "pip install" in output.decode()
