"""Starts Claude Code for a person, without the questions that it asks at its first start: they are answered here.

Arguments: the program and its arguments.
"""

from __future__ import annotations

import json
import os
import sys

PATH = os.path.expanduser("~/.claude.json")
ANSWERS = {"hasCompletedOnboarding": True, "theme": "auto"}


def main() -> None:
    try:
        with open(PATH, encoding="utf-8") as file:
            known = json.load(file)
    except (OSError, ValueError):
        known = {}
    if isinstance(known, dict):
        for name, value in ANSWERS.items():
            known.setdefault(name, value)
        projects = known.setdefault("projects", {})
        if isinstance(projects, dict) and isinstance(here := projects.setdefault(os.getcwd(), {}), dict):
            here["hasTrustDialogAccepted"] = True
        with open(f"{PATH}.new", "w", encoding="utf-8") as file:
            json.dump(known, file)
        os.replace(f"{PATH}.new", PATH)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606


if __name__ == "__main__":
    main()
