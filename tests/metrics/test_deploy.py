"""The dashboard, the alert rules and the page of metrics name metrics that the service has, and all of these."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cubicle.metrics.metrics import Metrics

ROOT = Path(__file__).parents[2]
DASHBOARD, ALERTS = ROOT / "deploy/grafana/cubicle.json", ROOT / "deploy/prometheus/alerts.yml"
_NAME = re.compile(r"\b(?:cubicle|process)_[a-z_]+")
_LABELS = re.compile(r"\bby \(([^)]*)\)")


def families() -> dict[str, tuple[str, set[str]]]:
    """Every name that a sample has, with the metric's own and its labels."""
    found: dict[str, tuple[str, set[str]]] = {}
    metrics = Metrics()
    for name in re.findall(r"^process_\w+", metrics.text().decode(), re.MULTILINE):
        found[name] = ("process_", set())
    for collector, names in metrics.registry._collector_to_names.items():
        labels = set(getattr(collector, "_labelnames", ()))
        own = getattr(collector, "_name", "")
        for name in names:
            found[name] = (own, labels | ({"le"} if name.endswith("_bucket") else set()))
    return found


def dashboard_queries() -> list[str]:
    return [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("query", [*dashboard_queries(), *(rule["expr"] for rule in rules())])
def test_a_query_uses_metrics_and_labels_that_exist(query: str) -> None:
    known = families()
    used = _NAME.findall(query)
    assert used or query.startswith("up{")
    for name in used:
        assert name in known, name
        for labels in _LABELS.findall(query):
            assert {label.strip() for label in labels.split(",")} <= known[name][1], (query, name)


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {families()[name][0] for query in dashboard_queries() for name in _NAME.findall(query)}
    assert {own for own, _ in families().values()} - shown <= {"cubicle_build"}


def test_every_alert_says_what_it_means() -> None:
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in rules())
    assert len({rule["alert"] for rule in rules()}) == len(rules())


def test_the_page_of_metrics_names_each() -> None:
    page = (ROOT / "docs/metrics.md").read_text("utf-8")
    for own, _ in families().values():
        assert f"`{own}" in page, own


def test_prometheus_takes_the_files() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (package prometheus)")
    config = ROOT / "deploy/prometheus/prometheus.yml"
    for question in (["config", "--syntax-only", str(config)], ["rules", str(ALERTS)]):
        done = subprocess.run([promtool, "check", *question], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout
