import hashlib
from dataclasses import dataclass

import pytest

from cubicle.chat.links import Links
from cubicle.core.chat import Chat
from cubicle.core.keys import KeyRing
from cubicle.machine.errors import MachineError
from cubicle.prompt.catalogue import SkillCatalogue
from cubicle.prompt.provision import Provisioner
from cubicle.prompt.system_prompt import SystemPrompt

CHAT = Chat("room")


@dataclass(frozen=True)
class Caller:
    chat: Chat
    email: str | None = None
    name: str | None = None


def put(folder, name, **files):
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: does {name}\n---\n")
    for file, text in files.items():
        (folder / name / file).write_text(text)


class Setup:
    def __init__(self, tmp_path):
        self.now = 0.0
        self.public, self.users = tmp_path / "public", tmp_path / "users"
        self.own = self.users / hashlib.sha256(b"ann@x.org").hexdigest()
        put(self.public, "one", tool="1")
        put(self.public, "two")
        put(self.own, "mine")
        (self.public / "one" / "tool").chmod(0o755)
        library = SkillCatalogue(self.public, None, self.users, clock=lambda: self.now)
        prompt = SystemPrompt(library, Links(b"s" * 32, "http://x", KeyRing({"a key": "main"})), clock=lambda: self.now)
        self.provisioner = Provisioner(library, prompt, clock=lambda: self.now)


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path / "host")


async def shell(machine, command):
    end, output = await machine.output(command)
    return end.code, output.decode()


async def test_skills_and_readme_are_there_before_the_first_command_and_read_only(fleet, setup):
    async with fleet.lease(CHAT) as machine:
        await setup.provisioner.prepare(machine, Caller(CHAT, "ann@x.org", "Ann"))
        code, listed = await shell(machine, "cd /mnt/skills && find . -type f -not -name '.*' | sort")
        assert listed.split() == [
            "./public/one/SKILL.md",
            "./public/one/tool",
            "./public/two/SKILL.md",
            "./user/mine/SKILL.md",
        ]
        assert await shell(machine, "cat /mnt/skills/public/one/tool; test -x /mnt/skills/public/one/tool") == (0, "1")
        for attempt in (
            "touch /mnt/skills/x",
            "rm -r /mnt/skills/public/one",
            "echo >> /mnt/skills/user/mine/SKILL.md",
        ):
            code, output = await shell(machine, attempt)
            assert code != 0, output
        code, readme = await shell(machine, "cat /home/assistant/README.md")
        assert readme.startswith("# Your computer")
        assert '"ann@x.org"' in readme
        assert "/mnt/skills/user/mine/SKILL.md" in readme


async def test_nothing_is_sent_when_nothing_changed(fleet, setup, monkeypatch):
    async with fleet.lease(CHAT) as machine:
        caller = Caller(CHAT, "ann@x.org")
        await setup.provisioner.prepare(machine, caller)
        monkeypatch.setattr(type(machine), "write", None)
        monkeypatch.setattr(type(machine), "read", None)
        await setup.provisioner.prepare(machine, caller)
        setup.now += 59
        await setup.provisioner.prepare(machine, caller)


async def test_a_restarted_service_writes_only_what_changed(fleet, setup):
    async with fleet.lease(CHAT) as machine:
        await setup.provisioner.prepare(machine, Caller(CHAT, "ann@x.org"))
        _, before = await shell(machine, "stat -c '%n %i' /mnt/skills/*/*/*")
        put(setup.public, "one", tool="2")
        library = SkillCatalogue(setup.public, None, setup.users)
        provisioner = Provisioner(
            library, SystemPrompt(library, Links(b"s" * 32, "http://x", KeyRing({"a key": "main"})))
        )
        await provisioner.prepare(machine, Caller(CHAT, "ann@x.org"))  # type: ignore[arg-type]
        _, after = await shell(machine, "stat -c '%n %i' /mnt/skills/*/*/*")
        assert await shell(machine, "cat /mnt/skills/public/one/tool") == (0, "2")
        unchanged = {line for line in before.splitlines() if "/two/" in line or "/mine/" in line}
        assert len(unchanged) == 2
        assert unchanged <= set(after.splitlines())


async def test_changes_reach_a_running_sandbox(fleet, setup):
    async with fleet.lease(CHAT) as machine:
        caller = Caller(CHAT, "ann@x.org")
        await setup.provisioner.prepare(machine, caller)
        put(setup.public, "three")
        for file in (setup.public / "one").iterdir():
            file.unlink()
        (setup.public / "one").rmdir()
        setup.now += 61
        await setup.provisioner.prepare(machine, caller)
        _, listed = await shell(machine, "ls /mnt/skills/public")
        assert listed.split() == ["three", "two"]
        _, readme = await shell(machine, "cat README.md")
        assert "/mnt/skills/public/three/SKILL.md" in readme
        assert "/mnt/skills/public/one/SKILL.md" not in readme


async def test_a_caller_without_an_e_mail_leaves_the_users_skills_and_another_user_takes_them_away(fleet, setup):
    async with fleet.lease(CHAT) as machine:
        await setup.provisioner.prepare(machine, Caller(CHAT, "ann@x.org"))
        await setup.provisioner.prepare(machine, Caller(CHAT))
        assert (await shell(machine, "ls /mnt/skills/user"))[1].split() == ["mine"]
        await setup.provisioner.prepare(machine, Caller(CHAT, "bob@x.org"))
        assert (await shell(machine, "ls /mnt/skills/user"))[1].split() == []


async def test_they_survive_a_stop(fleet, setup):
    async with fleet.lease(CHAT) as machine:
        await setup.provisioner.prepare(machine, Caller(CHAT, "ann@x.org"))
    await fleet.stop(CHAT)
    async with fleet.lease(CHAT) as machine:
        await setup.provisioner.prepare(machine, Caller(CHAT, "ann@x.org"))
        assert (await shell(machine, "ls /mnt/skills/user"))[1].split() == ["mine"]


@pytest.mark.parametrize(
    "trap", ["rm -f README.md; mkdir README.md", "ln -sf /etc/passwd README.md", "ln -sf /mnt/skills/x README.md"]
)
async def test_a_trap_in_the_place_of_the_readme_stops_nothing(fleet, setup, trap, caplog):
    async with fleet.lease(CHAT) as machine:
        await shell(machine, trap)
        await setup.provisioner.prepare(machine, Caller(CHAT))
        assert (await shell(machine, "ls /mnt/skills/public"))[1].split() == ["one", "two"]
        assert "not laid out" in caplog.text


@pytest.mark.parametrize("harm", ["rm README.md", "rm README.md; ln -s nowhere README.md"])
async def test_a_readme_that_a_command_took_away_is_back_within_a_minute(fleet, setup, harm):
    async with fleet.lease(CHAT) as machine:
        caller = Caller(CHAT, "ann@x.org")
        await setup.provisioner.prepare(machine, caller)
        text = await shell(machine, "cat README.md")
        assert (await shell(machine, harm))[0] == 0
        assert await shell(machine, "cat README.md") != text
        setup.now += 60
        await setup.provisioner.prepare(machine, caller)
        assert await shell(machine, "cat README.md") == text


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("work", ["echo '# My project' > README.md", "head -c 300000 /dev/zero > README.md"])
async def test_a_readme_that_somebody_wrote_stays(fleet, setup, work, restarted):
    async with fleet.lease(CHAT) as machine:
        caller = Caller(CHAT, "ann@x.org")
        await setup.provisioner.prepare(machine, caller)
        await shell(machine, work)
        own = await shell(machine, "md5sum README.md")
        if restarted:
            setup.provisioner._known.clear()
        for _ in range(2):
            put(setup.public, f"new-{setup.now:.0f}")
            setup.now += 61
            await setup.provisioner.prepare(machine, caller)
            assert await shell(machine, "md5sum README.md") == own


async def test_after_a_restart_of_the_service_the_readme_is_brought_up_to_date(fleet, setup):
    async with fleet.lease(CHAT) as machine:
        caller = Caller(CHAT, "ann@x.org")
        await setup.provisioner.prepare(machine, caller)
        setup.provisioner._known.clear()
        put(setup.public, "new")
        setup.now += 61
        await setup.provisioner.prepare(machine, caller)
        assert "/mnt/skills/public/new/SKILL.md" in (await shell(machine, "cat README.md"))[1]


async def test_a_readme_that_is_as_it_was_is_looked_at_once_a_minute_and_not_written(fleet, setup, monkeypatch):
    async with fleet.lease(CHAT) as machine:
        caller = Caller(CHAT, "ann@x.org")
        await setup.provisioner.prepare(machine, caller)
        looks = []
        true_read = type(machine).read

        def read(self, path, **options):
            looks.append(path)
            return true_read(self, path, **options)

        monkeypatch.setattr(type(machine), "read", read)
        monkeypatch.setattr(type(machine), "write", None)
        for _ in range(3):
            setup.now += 60
            for _ in range(5):
                await setup.provisioner.prepare(machine, caller)
        assert looks == ["/home/assistant/README.md"] * 3


async def test_a_readme_that_could_not_be_written_is_tried_again(fleet, setup, caplog):
    async with fleet.lease(CHAT) as machine:
        caller = Caller(CHAT)
        await shell(machine, "mkdir README.md")
        await setup.provisioner.prepare(machine, caller)
        assert "README.md not laid out" in caplog.text
        await shell(machine, "rmdir README.md")
        setup.now += 60
        await setup.provisioner.prepare(machine, caller)
        assert (await shell(machine, "head -1 README.md"))[1] == "# Your computer\n"


async def test_skills_that_cannot_be_laid_out_do_not_keep_the_readme_away(fleet, setup, monkeypatch, caplog):
    async with fleet.lease(CHAT) as machine:
        true_write = type(machine).write

        async def write(self, path, *arguments, **options):
            if path.startswith("/mnt/skills/"):
                raise MachineError("no-space", "The disk is full.")  # type: ignore[arg-type]
            return await true_write(self, path, *arguments, **options)

        monkeypatch.setattr(type(machine), "write", write)
        await setup.provisioner.prepare(machine, Caller(CHAT))
        assert "skills not laid out: " in caplog.text
        assert (await shell(machine, "head -1 README.md"))[1] == "# Your computer\n"


async def test_a_dressed_blank_sandbox_waits_for_the_readme_only(fleet, setup, monkeypatch):
    async with fleet.lease(CHAT) as machine:
        await setup.provisioner.dress(machine)
        written = []
        true_write = type(machine).write

        async def write(self, path, *arguments, **options):
            written.append(path)
            return await true_write(self, path, *arguments, **options)

        monkeypatch.setattr(type(machine), "write", write)
        await setup.provisioner.prepare(machine, Caller(CHAT))
        assert written == ["/home/assistant/README.md"]


async def test_a_large_shelf_is_laid_out_in_parts(fleet, setup):
    for number in range(3):
        put(setup.public, f"big-{number}", data="x" * (3 << 20))
    async with fleet.lease(CHAT) as machine:
        await setup.provisioner.prepare(machine, Caller(CHAT))
        _, sizes = await shell(machine, "stat -c %s /mnt/skills/public/big-*/data")
        assert sizes.split() == [str(3 << 20)] * 3
