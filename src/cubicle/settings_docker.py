"""The settings of the Docker driver, a part of `Settings`: settings.py reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings


class DockerSettings(BaseSettings):
    """One field per setting, as in `Settings`."""

    docker_host: str = Field(
        "unix:///var/run/docker.sock",
        description="Where the Docker engine (or Podman's socket) listens: unix://, tcp:// or ssh://.",
    )
    docker_cert_path: Path | None = Field(
        None, description="Folder with ca.pem, cert.pem and key.pem, for a Docker engine behind TLS (tcp://)."
    )
    docker_runtime: str = Field(
        "",
        description="Runtime that the Docker engine uses for sandboxes (runsc, kata, …); empty: its default.",
    )
    docker_network: str = Field(
        "",
        description="Docker engine on another machine: its network (bridge, say) by which guests are reached over TCP, "
        "at ports of that machine; empty: through the engine (docs/docker.md).",
    )
    docker_read_only: bool = Field(
        False, description="Docker: the root file system of a sandbox is read-only; home and outputs are volumes."
    )

    @field_validator("docker_cert_path", mode="before")
    @classmethod
    def _no_folder(cls, value: Any) -> Any:
        return value or None
