"""A built image as an OCI image layout in one tar, as registries and container runtimes take it: one gzip layer."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
from typing import IO, Any

from cubicle.images.export import write_tar
from cubicle.images.store import BuiltImage

_COMPRESSION = 1
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def write_layout(base: BuiltImage, output: IO[bytes], tag: str) -> str:
    """Write the layout to a stream; the digest by which a registry knows the image. The layer is made in a file first,
    because a tar names a size before the content."""
    with tempfile.TemporaryFile() as layer:
        content, compressed = _write_layer(base, layer)
        config = json.dumps(_config(base, content)).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _descriptor(_CONFIG, _sha256(config), len(config)),
                "layers": [_descriptor(_LAYER, compressed, layer.seek(0, os.SEEK_END))],
            }
        ).encode()
        names = {"org.opencontainers.image.ref.name": tag.rpartition(":")[2], "io.containerd.image.name": tag}
        index = {
            "schemaVersion": 2,
            "manifests": [_descriptor(_MANIFEST, _sha256(manifest), len(manifest)) | {"annotations": names}],
        }
        with tarfile.open(fileobj=output, mode="w|") as tar:
            _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
            _add(tar, "index.json", json.dumps(index).encode())
            _add(tar, f"blobs/sha256/{_sha256(manifest)}", manifest)
            _add(tar, f"blobs/sha256/{_sha256(config)}", config)
            entry = tarfile.TarInfo(f"blobs/sha256/{compressed}")
            entry.size = layer.seek(0, os.SEEK_END)
            layer.seek(0)
            tar.addfile(entry, layer)
    return f"sha256:{_sha256(manifest)}"


class _Hashing:
    """Passes on what is written, and knows its digest."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        return self._stream.write(data)

    def flush(self) -> None:
        self._stream.flush()

    @property
    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _write_layer(base: BuiltImage, file: IO[bytes]) -> tuple[str, str]:
    """The digests of the layer, and of the layer as it is compressed."""
    compressed = _Hashing(file)
    with gzip.GzipFile("", "wb", _COMPRESSION, compressed, mtime=0) as packed:
        content = _Hashing(packed)  # type: ignore[arg-type]
        write_tar(base, content)  # type: ignore[arg-type]
    return content.hexdigest, compressed.hexdigest


def _config(base: BuiltImage, content: str) -> dict[str, Any]:
    return {
        "created": base.manifest.built_at,
        "architecture": base.manifest.architecture,
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in base.environment.items()],
            "Cmd": ["/bin/bash"],
            "WorkingDir": "/home/assistant",
            "User": "assistant",
            "Labels": {"cubicle.image": base.digest},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{content}"]},
    }


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
