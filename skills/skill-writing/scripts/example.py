"""example.py OUT_FOLDER: make a skill, see what the check finds, fix it, package it."""

import os
import shutil
import sys
import zipfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_skill
import new_skill


def main(folder):
    os.makedirs(folder, exist_ok=True)
    shutil.rmtree(os.path.join(folder, "tea-making"), ignore_errors=True)
    home = new_skill.make("tea-making", folder)
    found = check_skill.faults(home)
    assert "SKILL.md still has a TODO." in found, found

    manifest = os.path.join(home, "SKILL.md")
    with open(manifest, encoding="utf-8") as file:
        text = file.read()
    text = text.replace("TODO what it does, and when to use it, in the words a user would use.",
                        "Makes tea. Use when somebody is thirsty.")
    text = text.replace("1. TODO", "1. Boil water.").replace("TODO", "Taste it.")
    with open(manifest, "w", encoding="utf-8") as file:
        file.write(text)
    assert check_skill.faults(home) == [], check_skill.faults(home)

    packed = os.path.join(folder, "tea-making.zip")
    check_skill.package(home, packed)
    assert zipfile.ZipFile(packed).namelist() == ["tea-making/SKILL.md", "tea-making/scripts/example.py"]
    print("ok", packed)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "skill-example")
