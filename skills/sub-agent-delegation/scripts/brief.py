"""brief.py new FILE | check FILE | verify FILE: a form for a sub-agent's task, its check, and its "done when" commands.

verify runs every command line (indented by four blanks) of the part "Done when" and says which fail.
"""

import os
import re
import subprocess
import sys

PARTS = {
    "Goal": "The result in one or two sentences, and for whom.",
    "Where": "Absolute paths: the project, the files that matter, how to build and run.",
    "Known": "What is found out and decided already; what does not work.",
    "Limits": "What must not change; packages; network; what not to do.",
    "Done when": "Commands that must succeed, one a line, indented by four blanks.",
    "Report": "At most 30 lines: files changed, checks run with their output, what is open.",
}


def parse(text):
    """The parts of a brief by their heading."""
    found = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return {name.strip(): body.strip("\n") for name, body in zip(found[1::2], found[2::2])}


def commands(parts):
    lines = parts.get("Done when", "").splitlines()
    return [line.strip() for line in lines if line.startswith("    ") and line.strip()]


def faults(text):
    parts = parse(text)
    found = []
    for name, hint in PARTS.items():
        body = parts.get(name, "").strip()
        if not body or body == "(" + hint + ")":
            found.append("%s is empty: %s" % (name, hint))
    if not any("is empty" in f and f.startswith("Done when") for f in found) and not commands(parts):
        found.append("Done when has no command: %s" % PARTS["Done when"])
    if "Where is empty" not in " ".join(found) and "/" not in parts.get("Where", ""):
        found.append("Where names no absolute path.")
    return found


def verify(text):
    """[(command, exit code)] of the commands that fail."""
    failed = []
    for command in commands(parse(text)):
        done = subprocess.run(["bash", "-c", command], timeout=600)
        if done.returncode:
            failed.append((command, done.returncode))
    return failed


def main(arguments):
    if len(arguments) != 2 or arguments[0] not in ("new", "check", "verify"):
        sys.exit(__doc__)
    action, path = arguments
    if action == "new":
        if os.path.exists(path):
            sys.exit("%s is there already." % path)
        with open(path, "w", encoding="utf-8") as file:
            file.write("# Task\n\n" + "\n".join("## %s\n(%s)\n" % part for part in PARTS.items()))
        print(path)
        return 0
    with open(path, encoding="utf-8") as file:
        text = file.read()
    lines = faults(text) if action == "check" else ["failed (%d): %s" % (c, t) for t, c in verify(text)]
    print("\n".join(lines) or ("the brief is complete" if action == "check" else "all commands succeed"))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
