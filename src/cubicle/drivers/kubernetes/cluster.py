"""Which cluster: the one that the service runs in, or the one that a kubeconfig names."""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cubicle.machine.errors import Unusable

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_SECONDS = 60.0
_MAX_FILE = 1024**2


@dataclass(slots=True)
class Cluster:
    """How the API server is reached, and as whom."""

    server: str
    tls: ssl.SSLContext | None
    namespace: str
    token: str = ""
    token_file: Path | None = None
    """Read again each minute: the kubelet replaces it."""
    _read_at: float = 0.0

    def bearer(self) -> str:
        """The token now. Blocking, but for a file of the memory file system."""
        if self.token_file is not None and (not self.token or time.monotonic() - self._read_at > _TOKEN_SECONDS):
            self.token = _read(self.token_file).decode().strip()
            self._read_at = time.monotonic()
        return self.token


def find_cluster(kubeconfig: Path | None, host: str, port: str, namespace: str) -> Cluster:
    """The cluster of the kubeconfig if there is one, else the one around this process. Raises Unusable. Blocking."""
    if kubeconfig is not None:
        return _from_file(kubeconfig, namespace)
    if not host:
        raise Unusable("DRIVER=kubernetes runs in a pod of the cluster, or needs KUBECONFIG.")
    authority = _read(_ACCOUNT / "ca.crt")
    try:
        tls = _trusting(authority.decode())
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise Unusable(f"{_ACCOUNT / 'ca.crt'} is no certificate: {error}.") from None
    own = namespace or _read(_ACCOUNT / "namespace").decode().strip()
    address = f"[{host}]" if ":" in host else host
    return Cluster(f"https://{address}:{port}", tls, own, token_file=_ACCOUNT / "token")


def _from_file(file: Path, namespace: str) -> Cluster:
    try:
        config = yaml.safe_load(_read(file))
        context = _named(config, "contexts", config["current-context"])["context"]
        cluster = _named(config, "clusters", context["cluster"])["cluster"]
        user = _named(config, "users", context["user"])["user"] or {}
        server = str(cluster["server"]).rstrip("/")
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise Unusable(f"KUBECONFIG={file} cannot be used: {type(error).__name__} {error}.") from None
    if "exec" in user or "auth-provider" in user:
        raise Unusable(f"KUBECONFIG={file}: users with exec or auth-provider are not supported; use a token.")
    token_file = Path(user["tokenFile"]) if user.get("tokenFile") else None
    tls = _tls(file, cluster, user) if server.startswith("https:") else None
    own = namespace or str(context.get("namespace") or "default")
    return Cluster(server, tls, own, str(user.get("token") or ""), token_file)


def _named(config: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    for entry in config[kind]:
        if entry["name"] == name:
            found: Mapping[str, Any] = entry
            return found
    raise KeyError(f"{kind}: {name}")


def _trusting(authority: str | None) -> ssl.SSLContext:
    """Authorities of clusters often lack extensions that Python 3.13 and later ask for; they are named one by one, so
    nothing is lost without."""
    context = ssl.create_default_context(cadata=authority)
    if authority is not None:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _tls(file: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    authority = _content(file, cluster, "certificate-authority")
    try:
        context = _trusting(authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        certificate, key = _content(file, user, "client-certificate"), _content(file, user, "client-key")
        if certificate and key:
            with tempfile.NamedTemporaryFile() as both:  # the ssl module takes no key from memory
                both.write(certificate + b"\n" + key)
                both.flush()
                context.load_cert_chain(both.name)
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise Unusable(f"KUBECONFIG={file}: a certificate cannot be used: {error}.") from None
    return context


def _content(file: Path, entry: Mapping[str, Any], name: str) -> bytes:
    """What an entry says itself (base64), or the file that it names, beside the kubeconfig."""
    if data := entry.get(f"{name}-data"):
        try:
            return base64.b64decode("".join(str(data).split()), validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise Unusable(f"KUBECONFIG={file}: {name}-data is not base64.") from None
    return _read(file.parent / str(entry[name])) if entry.get(name) else b""


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(_MAX_FILE)
    except OSError as error:
        raise Unusable(f"{file} cannot be read: {error.strerror}.") from None
