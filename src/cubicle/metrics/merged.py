"""The metrics of several processes as one page for Prometheus: each sample says whose it is."""

from __future__ import annotations

from collections.abc import Mapping

LABEL = "worker"


def merged(pages: Mapping[str, str]) -> str:
    """The pages by the name of the worker, family by family."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for worker, page in pages.items():
        family = ""
        for line in page.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                heads, _ = families.setdefault(family, ([], []))
                if line not in heads and len(heads) < 2:
                    heads.append(line)
            elif line and not line.startswith("#"):
                families.setdefault(family, ([], []))[1].append(_labelled(line, worker))
    lines = [line for heads, samples in families.values() for line in (*heads, *samples)]
    return "\n".join([*lines, ""])


def _labelled(sample: str, worker: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{{LABEL}="{worker}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{{LABEL}="{worker}"}} {value}'
