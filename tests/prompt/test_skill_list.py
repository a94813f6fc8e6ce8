import re

import pytest

from cubicle.chat.links import Links
from cubicle.core.chat import Chat
from cubicle.core.keys import KeyRing
from cubicle.prompt.catalogue import arrange
from cubicle.prompt.skill_list import skill_list
from cubicle.prompt.skills import Skill, Source
from cubicle.prompt.system_prompt import SystemPrompt
from cubicle.sandbox.driver import SandboxLimits

LONG = "Writes the quarterly report of the house from its numbers, in our style. Use for every quarterly report. " * 9


def made(number, source=Source.OPERATOR, description=LONG, name="house-report"):
    return [Skill(f"{name}-{i:03}", description[:1024], source, ()) for i in range(number)]


def tokens(text):
    """As in the test of the prompt; and every letter of other scripts for itself."""
    return len(re.findall(r"[A-Za-z]{1,8}|\d{1,3}|[^\sA-Za-z\d\x80-\U0010ffff]+|[^\x00-\x7f]", text))


class OneShelf:
    """A library with one skill set for all."""

    def __init__(self, skills):
        self._shelf = arrange(skills)

    async def of(self, email, tenant):
        return self._shelf


async def prompt_of(skills):
    links = Links(b"s" * 32, "https://box.example/p", KeyRing({"a key": "main"}))
    prompt = SystemPrompt(OneShelf(skills), links, limits=SandboxLimits().words())  # type: ignore[arg-type]
    return await prompt.text(Chat("1:a-" * 32), "someone.with.a.long.name@company.example.org", "N. " * 100)


@pytest.mark.anyio
@pytest.mark.parametrize("description", [LONG, "短い説明です。" * 100, "x", "a-b.c " * 100])
@pytest.mark.parametrize("number", [1, 10, 11, 20, 40, 60, 100, 200, 800])
async def test_the_prompt_stays_below_2500_tokens_however_many_skills_there_are(number, description):
    text = await prompt_of(made(number, description=description))
    assert tokens(text) <= 2500
    named = set(re.findall(r"house-report-\d{3}", text))
    more = re.search(r"- and (\d+) more: `ls /mnt/skills/public /mnt/skills/user`", text)
    assert len(named) + (int(more[1]) if more else 0) == number
    assert len(named) >= min(number, 60)


@pytest.mark.anyio
async def test_names_of_the_greatest_length_fit_too():
    assert tokens(await prompt_of(made(200, name="-".join("abcdefghijklmnopqrstuvwxyz1234")))) <= 2500


def test_few_are_listed_by_path_with_240_characters_of_the_description():
    lines, more = skill_list(made(3))
    assert more == 0
    assert lines[0] == f"- `/mnt/skills/public/house-report-000/SKILL.md`: {LONG[:239]}…"


def test_descriptions_grow_shorter_as_skills_grow_many_and_every_name_and_path_stays():
    def shown(number):
        lines, more = skill_list(made(number))
        assert more == 0
        assert sum("house-report-" in line for line in lines) == number
        return len(lines[-1].partition(": ")[2])

    lengths = [shown(number) for number in (5, 14, 25, 40, 60)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 240
    assert len(set(lengths)) >= 4


def test_the_path_stands_once_above_names_alone():
    lines, _ = skill_list([*made(40), *made(20, Source.USER, name="mine")])
    heads = [line for line in lines if not line.startswith("- ")]
    assert [head.split("`")[1] for head in heads] == [
        "/mnt/skills/user/NAME/SKILL.md",
        "/mnt/skills/public/NAME/SKILL.md",
    ]
    assert lines.index(heads[1]) == 21


def test_the_users_own_come_first_and_are_the_last_to_be_left_out():
    lines, more = skill_list(
        [*made(400), *made(5, Source.USER, name="zz-mine"), *made(5, Source.SETTINGS, name="zz-set")]
    )
    assert [line.startswith("- `zz-") for line in lines[1:11]] == [True] * 10
    assert more == 410 - (len(lines) - 2)
