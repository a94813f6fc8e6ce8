"""Which cluster is meant, by a kubeconfig or by what a pod is given."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cubicle.drivers.kubernetes.cluster import find_cluster
from cubicle.machine.errors import Unusable

SCRIPT = Path(__file__).parents[3] / "scripts" / "with-kubernetes"


def config(tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any] | None = None, **context: str) -> Path:
    file = tmp_path / "config"
    told = {
        "current-context": "c",
        "contexts": [
            {"name": "other", "context": {}},
            {"name": "c", "context": {"cluster": "k", "user": "u", **context}},
        ],
        "clusters": [{"name": "k", "cluster": {"server": "https://api.test:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
    }
    file.write_text(json.dumps(told))
    return file


def test_a_token_and_the_namespace_of_the_context(tmp_path: Path) -> None:
    found = find_cluster(config(tmp_path, {"token": "secret"}, namespace="boxes"), "", "", "")
    assert (found.server, found.bearer(), found.namespace) == ("https://api.test:6443", "secret", "boxes")
    assert find_cluster(config(tmp_path, {"token": "secret"}), "", "", "").namespace == "default"
    assert find_cluster(config(tmp_path, {"token": "secret"}), "", "", "mine").namespace == "mine"


def test_a_file_of_the_token_is_read_when_it_is_needed(tmp_path: Path) -> None:
    token = tmp_path / "token"
    found = find_cluster(config(tmp_path, {"tokenFile": str(token)}), "", "", "")
    token.write_text("first\n")
    assert found.bearer() == "first"
    token.write_text("second")
    assert found.bearer() == "first"
    found._read_at -= 100
    assert found.bearer() == "second"


@pytest.mark.parametrize(
    ("user", "cluster", "said"),
    [
        ({"exec": {"command": "aws"}}, {}, "exec"),
        ({"auth-provider": {"name": "gcp"}}, {}, "auth-provider"),
        ({}, {"certificate-authority": "no-such-file"}, "cannot be read"),
        ({}, {"certificate-authority-data": "###"}, "certificate"),
        ({}, {"certificate-authority-data": base64.b64encode(b"no certificate").decode()}, "certificate"),
    ],
)
def test_what_cannot_be_used_is_said(tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], said: str) -> None:
    with pytest.raises(Unusable, match=said):
        find_cluster(config(tmp_path, user, cluster), "", "", "")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "current-context: x", "current-context: x\ncontexts: [{name: y}]", "a"]
)
def test_garbage_is_no_kubeconfig(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(Unusable, match="KUBECONFIG"):
        find_cluster(file, "", "", "")


def test_neither_a_file_nor_a_pod_is_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="KUBECONFIG"):
        find_cluster(None, "", "443", "")
    with pytest.raises(Unusable, match="cannot be read"):
        find_cluster(tmp_path / "nothing", "", "", "")


def test_the_script_uses_the_cluster_that_is_named() -> None:
    done = subprocess.run(
        [SCRIPT, "sh", "-c", "echo with $KUBECONFIG"],
        env={**os.environ, "KUBECONFIG": "/somewhere/config"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "with /somewhere/config"


def test_a_pod_without_an_account_is_told_which_file_it_lacks() -> None:
    with pytest.raises(Unusable, match=r"serviceaccount/ca.crt cannot be read"):
        find_cluster(None, "10.0.0.1", "443", "")
