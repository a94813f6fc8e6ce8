"""new_skill.py NAME FOLDER: the beginnings of a skill in FOLDER/NAME."""

import os
import re
import sys

MANIFEST = """---
name: {name}
description: TODO what it does, and when to use it, in the words a user would use.
---
# {title}

## Steps
1. TODO

## Check before you deliver
TODO

## Example
`python3 scripts/example.py OUT_FOLDER`
"""
EXAMPLE = '''"""example.py OUT_FOLDER: runs the skill's own example and checks it."""

import os
import sys


def main(folder):
    os.makedirs(folder, exist_ok=True)
    print("ok", folder)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "{name}-example")
'''


def make(name, folder):
    if len(name) > 64 or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        sys.exit("A name is a-z, 0-9 and single hyphens, at most 64 characters.")
    home = os.path.join(folder, name)
    if os.path.exists(home):
        sys.exit("%s is there already." % home)
    os.makedirs(os.path.join(home, "scripts"))
    with open(os.path.join(home, "SKILL.md"), "w", encoding="utf-8") as file:
        file.write(MANIFEST.format(name=name, title=name.replace("-", " ").capitalize()))
    with open(os.path.join(home, "scripts", "example.py"), "w", encoding="utf-8") as file:
        file.write(EXAMPLE.replace("{name}", name))
    return home


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    print(make(sys.argv[1], sys.argv[2]))
