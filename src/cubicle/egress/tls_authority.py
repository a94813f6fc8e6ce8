"""The service's own certificate authority, for the hosts at which the proxy has to look into TLS."""

from __future__ import annotations

import datetime
import logging
import os
import ssl
import tempfile
from collections import OrderedDict
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cubicle import durable, record
from cubicle.record import BadRecord

log = logging.getLogger(__name__)

_CA_LIFE = datetime.timedelta(days=3650)
_RENEW_BEFORE = datetime.timedelta(days=90)
_LEAF_LIFE = datetime.timedelta(days=30)
_MAX_CONTEXTS = 512


class Authority:
    """Makes certificates that the sandboxes of this service trust, and nobody else does. All of it blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key: ec.EllipticCurvePrivateKey | None = None
        self._certificate: x509.Certificate | None = None
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[str, tuple[ssl.SSLContext, datetime.datetime]] = OrderedDict()

    def open(self) -> None:
        """Read the authority of this service, or make it at the first time."""
        path = self._folder / "authority.pem"
        if not self._load(path):
            if os.path.lexists(path):
                log.warning("the certificate authority was made anew; the old one is %s", record.keep_bad(path).name)
            self._make(path)

    @property
    def pem(self) -> bytes:
        """The certificate that sandboxes have to trust."""
        assert self._certificate is not None
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def context(self, host: str) -> ssl.SSLContext:
        """What to answer as this host with."""
        now = _now()
        kept = self._contexts.get(host)
        if kept is not None and now < kept[1]:
            self._contexts.move_to_end(host)
            return kept[0]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        with tempfile.NamedTemporaryFile(dir=self._folder, suffix=".pem") as file:
            file.write(_private(self._leaf_key) + self._leaf(host).public_bytes(serialization.Encoding.PEM))
            file.flush()
            context.load_cert_chain(file.name)
        self._contexts[host] = context, now + _LEAF_LIFE / 2
        while len(self._contexts) > _MAX_CONTEXTS:
            self._contexts.popitem(last=False)
        return context

    def _load(self, path: Path) -> bool:
        try:
            content = record.read_bytes(path)
            key = serialization.load_pem_private_key(content, None)
            certificate = x509.load_pem_x509_certificate(content[content.index(b"-----BEGIN CERT") :])
        except (ValueError, TypeError, UnsupportedAlgorithm, FileNotFoundError, BadRecord):
            return False
        valid = certificate.not_valid_before_utc <= _now() < certificate.not_valid_after_utc - _RENEW_BEFORE
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not valid:
            return False
        self._key, self._certificate = key, certificate
        return True

    def _make(self, path: Path) -> None:
        record.make_folder(self._folder)
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Cubicle egress proxy")])
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        certificate = (
            _builder(name, name, key.public_key(), _CA_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        durable.write(path, _private(key) + certificate.public_bytes(serialization.Encoding.PEM))
        self._key, self._certificate = key, certificate

    def _leaf(self, host: str) -> x509.Certificate:
        assert self._key is not None
        assert self._certificate is not None
        try:
            name: x509.GeneralName = x509.IPAddress(ip_address(host))
        except ValueError:
            name = x509.DNSName(host)
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        public = self._leaf_key.public_key()
        return (
            _builder(x509.Name([]), self._certificate.subject, public, _LEAF_LIFE)
            .add_extension(x509.SubjectAlternativeName([name]), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=False)
            .add_extension(authority, critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: datetime.timedelta
) -> x509.CertificateBuilder:
    start = _now() - datetime.timedelta(hours=1)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + life)
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
