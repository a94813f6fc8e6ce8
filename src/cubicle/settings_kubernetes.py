"""The settings of the Kubernetes driver, a part of `Settings`: settings.py reads them."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")


class PodIsolation(StrEnum):
    RULES = "rules"
    """An init container with NET_ADMIN closes the pod's network."""
    POLICY = "policy"
    """A NetworkPolicy does, and the cluster's network has to enforce it."""


class PodFiles(StrEnum):
    SHARED = "shared"
    """One claim for all, a folder for each sandbox."""
    CLAIM = "claim"
    """A claim for each sandbox."""


class KubernetesSettings(BaseSettings):
    """One field per setting, as in `Settings`."""

    kubeconfig: Path | None = Field(
        None, description="Kubernetes: file that names the cluster; empty: the cluster that the service runs in."
    )
    kubernetes_namespace: str = Field(
        "", description="Kubernetes: namespace of the sandboxes; empty: that of the service, or of the kubeconfig."
    )
    kubernetes_instance: str = Field(
        "cubicle",
        description="Kubernetes: name that objects of this service begin with. Services with different names share no "
        "chats.",
    )
    kubernetes_image: str = Field(
        "",
        description="Kubernetes: sandbox image in a registry, such as registry.example.net/sandbox@sha256:… "
        "(`cubicle image export --oci`).",
    )
    kubernetes_isolation: PodIsolation = Field(
        PodIsolation.RULES,
        description="Kubernetes: what closes a sandbox's network: rules (nftables, by an init container with "
        "NET_ADMIN) or policy (a NetworkPolicy, which the cluster's network has to enforce).",
    )
    kubernetes_files: PodFiles = Field(
        PodFiles.SHARED,
        description="Kubernetes: where files of sandboxes are: shared (folders of one ReadWriteMany claim) or claim (a "
        "claim for each sandbox).",
    )
    kubernetes_claim: str = Field("cubicle-files", description="Kubernetes: name of the claim that sandboxes share.")
    kubernetes_storage_class: str = Field(
        "", description="Kubernetes: storage class of claims for one sandbox; empty: the cluster's default."
    )
    kubernetes_pod_template: Path | None = Field(
        None,
        description="Kubernetes: YAML file with more of a sandbox's pod: node selector, tolerations, runtime class, "
        "pull secrets, resources.",
    )
    kubernetes_key_file: Path | None = Field(
        None,
        description="Kubernetes: RSA keys (PEM) by which sandboxes know the service, the one that signs first; empty: "
        "one that is made in DATA_DIR.",
    )
    kubernetes_service_host: str = Field("", description="Kubernetes: set by the cluster in every pod.")
    kubernetes_service_port: str = Field("443", description="Kubernetes: set by the cluster in every pod.")

    @field_validator("kubeconfig", "kubernetes_pod_template", "kubernetes_key_file", mode="before")
    @classmethod
    def _no_file_of_a_cluster(cls, value: Any) -> Any:
        return value or None

    @field_validator("kubernetes_instance")
    @classmethod
    def _instance_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("must be 1 to 20 lower-case letters, digits and -")
        return value
