"""An image of the service on the nodes of the private cluster: what deploy/Dockerfile.service makes, on the sandbox's
image, which has the Python. No registry and no engine are asked."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from tests.support.helm import ROOT

NAME = "cubicle.test/service:test"
_SITE = "opt/cubicle/site"
_PROGRAM = b"#!/usr/bin/python3\nimport sys\nfrom cubicle.cli import main\nsys.exit(main())\n"


def bring_in(cluster: Path, sandbox_image: str, folder: Path) -> None:
    """Make it, and have each node know it. Blocking, for half a minute."""
    layer = _layer(folder)
    sockets = sorted(cluster.glob("n*/containerd.sock"))
    base = folder / "base.tar"
    _run("ctr", "-a", str(sockets[0]), "-n", "k8s.io", "images", "export", str(base), sandbox_image)
    image = folder / "service.tar"
    _write(base, layer, image)
    for socket in sockets:
        _run("ctr", "-a", str(socket), "-n", "k8s.io", "images", "import", str(image))


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False, cwd=ROOT)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr[-3000:]}"


def _layer(folder: Path) -> bytes:
    """The packages and the service itself, as they are installed for the image's Python."""
    # Tests run in the network of the cluster, which leads nowhere.
    outside = ("nsenter", f"--net={os.environ['CUBICLE_KUBERNETES_OUTSIDE']}")
    uv, site = (*outside, str(ROOT / ".state/uv/bin/uv"), "pip"), folder / "site"
    target = ("--target", str(site), "--python-version", "3.13", "--python-platform", "linux")
    _run(*uv, "sync", "--quiet", *target, "--require-hashes", "--only-binary", ":all:", "requirements.txt")
    _run(*uv, "install", "--quiet", *target, "--no-deps", "--build-constraints", "requirements-setup.txt", ".")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(site, _SITE, filter=_of_root)
        entry = tarfile.TarInfo("usr/local/bin/cubicle")
        entry.size, entry.mode = len(_PROGRAM), 0o755
        tar.addfile(entry, io.BytesIO(_PROGRAM))
    return packed.getvalue()


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _write(base: Path, layer: bytes, target: Path) -> None:
    """The base's layers and one more."""
    with tarfile.open(base) as old, tarfile.open(target, "w") as new:
        found = _json(old, "index.json")
        while "manifests" in found:
            found = _json(old, _blob(found["manifests"][0]["digest"]))
        config = _json(old, _blob(found["config"]["digest"]))
        packed = gzip.compress(layer, 1)
        config["rootfs"]["diff_ids"].append(f"sha256:{_sha256(layer)}")
        config["config"] |= {"Entrypoint": ["/usr/local/bin/cubicle"], "Cmd": ["serve"], "WorkingDir": "/", "User": ""}
        config["config"]["Env"] = [*config["config"].get("Env", []), f"PYTHONPATH=/{_SITE}"]
        described = json.dumps(config).encode()
        kinds = (found["config"]["mediaType"], found["layers"][0]["mediaType"])
        manifest = json.dumps(
            {
                **{name: found[name] for name in ("schemaVersion", "mediaType") if name in found},
                "config": _descriptor(kinds[0], described),
                "layers": [*found["layers"], _descriptor(kinds[1], packed)],
            }
        ).encode()
        kind = found.get("mediaType", "application/vnd.oci.image.manifest.v1+json")
        listed = {**_descriptor(kind, manifest), "annotations": {"io.containerd.image.name": NAME}}
        _add(new, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(new, "index.json", json.dumps({"schemaVersion": 2, "manifests": [listed]}).encode())
        for content in (manifest, described, packed):
            _add(new, _blob(f"sha256:{_sha256(content)}"), content)
        for one in found["layers"]:
            entry = old.getmember(_blob(one["digest"]))
            new.addfile(entry, old.extractfile(entry))


def _json(tar: tarfile.TarFile, name: str) -> dict[str, Any]:
    stream = tar.extractfile(name)
    assert stream is not None
    found: dict[str, Any] = json.load(stream)
    return found


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{_sha256(content)}", "size": len(content)}


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
