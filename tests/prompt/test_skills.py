import logging
import os

import pytest

from cubicle.prompt.skills import BadSkill, Source, front_matter, read_folder, read_skill, user_digest

GOOD = "---\nname: tidy-desk\ndescription: Tidies a desk. Use when asked to tidy.\n---\n# Body\n"


def make(folder, name="tidy-desk", manifest=GOOD, **files):
    skill = folder / name
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(manifest)
    for path, text in files.items():
        (skill / path).write_text(text)
    return skill


def test_a_folder_with_front_matter_is_a_skill(tmp_path):
    folder = make(tmp_path)
    (folder / "scripts").mkdir()
    script = folder / "scripts" / "run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    skill = read_skill(folder, Source.USER)
    assert (skill.name, skill.description) == ("tidy-desk", "Tidies a desk. Use when asked to tidy.")
    assert skill.location == "/mnt/skills/user/tidy-desk/SKILL.md"
    assert [(f.path, f.executable) for f in skill.files] == [("SKILL.md", False), ("scripts/run.sh", True)]
    assert skill.files[1].read() == b"#!/bin/sh\n"


def test_a_folded_description_becomes_one_line():
    manifest = b"---\nname: a\ndescription: >\n  one\n  two\nlicense: Apache-2.0\nmetadata: {v: 1}\n---\n"
    assert front_matter(manifest) == ("a", "one two")


def test_a_manifest_may_begin_with_a_byte_order_mark():
    assert front_matter(b"\xef\xbb\xbf---\r\nname: a\r\ndescription: b\r\n---\r\n# Body") == ("a", "b")


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (b"# no front matter", "front matter"),
        (b"---\nname: a\ndescription: b\n", "front matter"),
        (b"\xff\xfe", "UTF-8"),
        (b"---\n- a\n---\n", "mapping"),
        (b"---\nname: [a\n---\n", "YAML"),
        (b"---\na: " + b"[" * 100 + b"\n---\n", "YAML"),
        (b"---\na: " + b"[" * 101 + b"\n---\n", "brackets"),
        (b"---\na: !!python/object/apply:os.system [id]\n---\n", "YAML"),
        (b"---\nx: " + b"y" * 20_000 + b"\n---\n", "front matter"),
        (b"---\ndescription: b\n---\n", "name"),
        (b"---\nname: 12\ndescription: b\n---\n", "name"),
        (b"---\nname: ../up\ndescription: b\n---\n", "name"),
        (b"---\nname: Upper\ndescription: b\n---\n", "name"),
        (b"---\nname: a--b\ndescription: b\n---\n", "name"),
        (b"---\nname: -a\ndescription: b\n---\n", "name"),
        (b"---\nname: " + b"a" * 65 + b"\ndescription: b\n---\n", "name"),
        (b"---\nname: a\n---\n", "description"),
        (b"---\nname: a\ndescription: ''\n---\n", "description"),
        (b"---\nname: a\ndescription: ' \t '\n---\n", "description"),
        (b"---\nname: a\ndescription: " + b"d" * 1025 + b"\n---\n", "description"),
    ],
)
def test_what_is_no_front_matter_is_refused_with_the_reason(manifest, why):
    with pytest.raises(BadSkill, match=why):
        front_matter(manifest)


def test_a_broken_skill_is_left_out_with_a_line_in_the_log(tmp_path, caplog):
    make(tmp_path)
    make(tmp_path, "broken", "nothing")
    make(tmp_path, "other-name")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a file").write_text("x")
    with caplog.at_level(logging.WARNING):
        skills = read_folder(tmp_path, Source.OPERATOR)
    assert [s.name for s in skills] == ["tidy-desk"]
    assert [r.message.split(" (")[0] for r in caplog.records] == [
        "skill left out: broken",
        "skill left out: empty",
        "skill left out: other-name",
    ]


def test_a_folder_that_is_not_there_has_no_skills(tmp_path):
    assert read_folder(tmp_path / "none", Source.USER) == []


def test_links_and_special_files_are_never_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    skill_set = tmp_path / "skill_set"
    folder = make(skill_set)
    (folder / "link").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "fifo")
    (skill_set / "linked-skill").symlink_to(folder)
    (skill,) = read_folder(skill_set, Source.USER)
    assert [f.path for f in skill.files] == ["SKILL.md"]


def test_a_manifest_that_is_a_link_makes_no_skill(tmp_path):
    target = tmp_path / "target"
    target.write_text(GOOD)
    folder = tmp_path / "skill_set" / "tidy-desk"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").symlink_to(target)
    assert read_folder(tmp_path / "skill_set", Source.USER) == []


def test_too_many_files_are_refused(tmp_path):
    folder = make(tmp_path, **{f"f{n}": "" for n in range(500)})
    with pytest.raises(BadSkill, match="500 files"):
        read_skill(folder, Source.USER)


def test_the_digest_changes_with_content_name_and_mode(tmp_path):
    folder = make(tmp_path, note="1")
    digests = {read_skill(folder, Source.USER).digest}
    (folder / "note").write_text("2")
    digests.add(read_skill(folder, Source.USER).digest)
    (folder / "note").chmod(0o755)
    digests.add(read_skill(folder, Source.USER).digest)
    (folder / "note").rename(folder / "node")
    digests.add(read_skill(folder, Source.USER).digest)
    assert len(digests) == 4
    assert read_skill(folder, Source.USER).digest in digests


def test_a_user_has_one_folder_whatever_the_case_and_another_in_each_tenant():
    assert user_digest(" Ann@X.org ", "main") == user_digest("ann@x.org", "main")
    assert user_digest("ann@x.org", "main") != user_digest("ann@x.org", "acme")
    assert len(user_digest("../../etc", "main")) == 64
