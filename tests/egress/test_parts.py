"""Parts of the egress proxy by themselves: the SOCKS handshake, the allowance, the authority, the variables."""

from __future__ import annotations

import re
import ssl
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubicle.egress import socks5
from cubicle.egress.environment import proxy_environment, trust_environment
from cubicle.egress.meter import Meter, Quota, QuotaSpent
from cubicle.egress.policy import Target
from cubicle.egress.tls_authority import Authority


class Caller:
    """A caller whose every byte is known beforehand."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self.heard = b""

    async def exactly(self, count: int) -> bytes:
        if len(self._said) < count:
            raise EOFError
        part, self._said = self._said[:count], self._said[count:]
        return part

    async def write(self, data: bytes | memoryview) -> None:
        self.heard += bytes(data)


def finish(caller: Caller) -> Target:
    """Run the handshake without a loop: this caller never waits."""
    running = socks5.handshake(caller)
    try:
        running.send(None)
    except StopIteration as end:
        target: Target = end.value
        return target
    raise AssertionError("the handshake waits for something")


HELLO = b"\x05\x01\x00"


@pytest.mark.parametrize(
    ("said", "host", "port"),
    [
        (HELLO + b"\x05\x01\x00\x03\x05a.org\x01\xbb", "a.org", 443),
        (HELLO + b"\x05\x01\x00\x01\x01\x02\x03\x04\x00\x50", "1.2.3.4", 80),
        (HELLO + b"\x05\x01\x00\x04" + bytes(15) + b"\x01\x00\x50", "::1", 80),
        (b"\x05\x03\x02\x01\x00" + b"\x05\x01\x00\x03\x07A.ORG..\x01\xbb", "", 0),
        (b"\x05\x03\x02\x01\x00" + b"\x05\x01\x00\x03\x06A.ORG.\x01\xbb", "a.org", 443),
    ],
)
def test_the_handshake(said: bytes, host: str, port: int) -> None:
    caller = Caller(said)
    if not host:
        with pytest.raises(socks5.BadHandshake):
            finish(caller)
        return
    target = finish(caller)
    assert (target.host, target.port) == (host, port)
    assert caller.heard == b"\x05\x00"


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (b"\x04\x01\x00\x50\x01\x02\x03\x04\x00", b""),
        (b"\x05\x01\x02", b"\x05\xff"),
        (b"\x05\x00", b"\x05\xff"),
        (HELLO + b"\x05\x02\x00\x01\x01\x02\x03\x04\x00\x50", b"\x05\x00\x05\x07\x00\x01" + bytes(6)),
        (HELLO + b"\x05\x03\x00\x01\x01\x02\x03\x04\x00\x50", b"\x05\x00\x05\x07\x00\x01" + bytes(6)),
        (HELLO + b"\x05\x01\x00\x09", b"\x05\x00\x05\x08\x00\x01" + bytes(6)),
        (HELLO + b"\x05\x01\x00\x03\x00\x00\x50", b"\x05\x00\x05\x08\x00\x01" + bytes(6)),
        (HELLO + b"\x05\x01\x00\x03\x051.2.3\x00\x50", b"\x05\x00\x05\x08\x00\x01" + bytes(6)),
        (HELLO + b"\x05\x01\x00\x03\x05a.org\x00\x00", b"\x05\x00\x05\x08\x00\x01" + bytes(6)),
        (HELLO + b"\x06\x01\x00\x03\x05a.org\x00\x50", b"\x05\x00"),
    ],
)
def test_a_handshake_that_is_refused(said: bytes, heard: bytes) -> None:
    caller = Caller(said)
    with pytest.raises(socks5.BadHandshake):
        finish(caller)
    assert caller.heard == heard


@settings(deadline=None)
@given(st.binary(max_size=400) | st.binary(max_size=300).map(lambda rest: HELLO + b"\x05\x01\x00\x03" + rest))
def test_no_bytes_break_the_handshake(said: bytes) -> None:
    try:
        target = finish(Caller(said))
    except (socks5.BadHandshake, EOFError):
        return
    assert 0 < target.port < 65536
    assert target.host


def test_the_allowance_ends_and_begins_again_with_the_day() -> None:
    now = [0.0]
    allowance = Quota(lambda: now[0])
    allowance.add(60, 100)
    with pytest.raises(QuotaSpent):
        allowance.add(60, 100)
    assert allowance.spent(100)
    assert not allowance.spent(0)
    assert not allowance.forgettable
    now[0] = 86400.0
    assert allowance.forgettable
    assert not allowance.spent(100)
    allowance.add(60, 100)


def test_a_meter_counts_both_ways() -> None:
    touched: list[int] = []
    meter = Meter(Quota(), 0, lambda: touched.append(1))
    meter.sent(3)
    meter.received(4)
    assert (meter.up, meter.down, len(touched)) == (3, 4, 2)


def test_the_authority_is_kept_and_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "egress"
    first, second = Authority(folder), Authority(folder)
    first.open()
    second.open()
    assert first.pem == second.pem
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    context = first.context("a.org")
    assert first.context("a.org") is context
    assert [path.name for path in folder.iterdir()] == ["authority.pem"]


def test_a_broken_authority_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "authority.pem").write_text("what is this")
    authority = Authority(tmp_path)
    authority.open()
    assert len(ssl.create_default_context(cadata=authority.pem.decode()).get_ca_certs()) == 1
    again = Authority(tmp_path)
    again.open()
    assert again.pem == authority.pem


def test_proxy_variables_come_in_both_cases_and_spare_the_loopback() -> None:
    variables = proxy_environment()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        assert variables[name] == variables[name.lower()]
    assert variables["HTTPS_PROXY"] == "http://127.0.0.1:3128"
    assert set(variables["NO_PROXY"].split(",")) == {"localhost", "127.0.0.1", "::1"}
    assert variables["NODE_USE_ENV_PROXY"] == "1"
    assert proxy_environment(4000)["http_proxy"].endswith(":4000")


def test_every_variable_of_trust_names_one_file() -> None:
    assert set(trust_environment().values()) == {"/run/egress/ca.crt"}
    assert all(re.fullmatch(r"[A-Za-z_]+", name) for name in trust_environment())
