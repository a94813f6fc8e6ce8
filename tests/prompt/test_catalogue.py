import asyncio
import hashlib

import httpx
import pytest

from cubicle.prompt.catalogue import SkillCatalogue, digest, shipped_folder
from cubicle.prompt.settings_service import SettingsService
from cubicle.prompt.skills import Source, read_folder


def put(folder, name, description):
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\n")


@pytest.fixture
def folders(tmp_path):
    public, operator, users = tmp_path / "public", tmp_path / "operator", tmp_path / "users"
    put(public, "one", "public one")
    put(public, "two", "public two")
    put(operator, "two", "operator two")
    put(operator, "three", "operator three")
    put(users / hashlib.sha256(b"ann@x.org").hexdigest(), "three", "Ann's three")
    put(users / hashlib.sha256(b"ann@x.org").hexdigest(), "four", "Ann's four")
    return public, operator, users


@pytest.mark.anyio
async def test_the_skill_nearer_to_the_user_wins(folders):
    library = SkillCatalogue(*folders)
    everyone = await library.of(None)
    assert [(s.name, s.description) for s in everyone.skills] == [
        ("one", "public one"),
        ("three", "operator three"),
        ("two", "operator two"),
    ]
    ann = await library.of("Ann@X.org")
    assert [(s.name, s.location) for s in ann.skills] == [
        ("four", "/mnt/skills/user/four/SKILL.md"),
        ("one", "/mnt/skills/public/one/SKILL.md"),
        ("three", "/mnt/skills/user/three/SKILL.md"),
        ("two", "/mnt/skills/public/two/SKILL.md"),
    ]
    assert [s.name for s in ann.group("user")] == ["four", "three"]


@pytest.mark.anyio
async def test_a_user_of_another_tenant_with_the_same_address_gets_nothing_of_hers(folders):
    skill_set = await SkillCatalogue(*folders).of("ann@x.org", "acme")
    assert skill_set.group("user") == ()


@pytest.mark.anyio
async def test_the_settings_service_adds_and_wins_and_its_absence_changes_nothing(folders):
    manifest = "---\nname: four\ndescription: from the service\n---\n"
    answer = {"skills": [{"name": "four", "files": {"SKILL.md": manifest}}]}
    up = SettingsService(
        httpx.AsyncClient(transport=httpx.MockTransport(lambda r: httpx.Response(200, json=answer))),
        "http://s",
    )
    down = SettingsService(httpx.AsyncClient(transport=httpx.MockTransport(lambda r: httpx.Response(503))), "http://s")
    skill_set = await SkillCatalogue(*folders, up).of("ann@x.org")  # type: ignore[arg-type, call-arg]
    assert {s.name: s.source for s in skill_set.skills}["four"] is Source.SETTINGS
    skill_set = await SkillCatalogue(*folders, down).of("ann@x.org")  # type: ignore[arg-type, call-arg]
    assert {s.name: s.source for s in skill_set.skills}["four"] is Source.USER


@pytest.mark.anyio
async def test_a_changed_folder_is_seen_after_a_short_while(folders):
    now = [0.0]
    library = SkillCatalogue(*folders, clock=lambda: now[0])
    before = await library.of(None)
    put(folders[0], "five", "new")
    assert await library.of(None) is before
    now[0] = 31
    after = await library.of(None)
    assert "five" in [s.name for s in after.skills]
    assert digest(after.skills) != digest(before.skills)


@pytest.mark.anyio
async def test_ten_skills_ship_with_the_service():
    skill_set = await SkillCatalogue().of(None)
    assert len(skill_set.skills) == 10
    assert len([p for p in shipped_folder().iterdir() if p.is_dir()]) == 10


@pytest.mark.anyio
async def test_however_many_ask_at_a_time_the_folders_are_read_once(folders, monkeypatch):
    read = []

    def counted(folder, source):
        read.append(folder)
        return read_folder(folder, source)

    monkeypatch.setattr("cubicle.prompt.catalogue.read_folder", counted)
    library = SkillCatalogue(*folders)
    shelves = await asyncio.gather(*(library.of(None) for _ in range(100)))
    assert all(skill_set is shelves[0] for skill_set in shelves)
    assert read == [folders[0], folders[1]]
    await asyncio.gather(*(library.of(f"user{n}@x.org") for n in range(20)))
    assert len(read) == 2 + 20, "what everybody has is not read for each"
