"""Before a sandbox starts: `network_rules.py PORT [ADDRESS...]` closes its network, by nftables over netlink.

Nothing leaves but answers from the guest's port, nothing comes in but to that port, and nobody inside reaches it, nor
an ADDRESS (IPv4) of loopback where the host listens. The rules live in the sandbox's network namespace, for IPv4 and
IPv6, without connection tracking. Whatever fails here ends the program with an error, and the sandbox never starts.

    output   oifname "lo" tcp dport PORT reject with tcp reset
             oifname "lo" ip daddr ADDRESS reject with icmpx admin-prohibited
             oifname "lo" accept
             tcp sport PORT tcp flags & (syn | ack) != syn accept
             icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
             reject with icmpx admin-prohibited              (drop, where the kernel has no reject)
    input    iifname "lo" accept; tcp dport PORT accept; icmpv6 type { 2, 134, 135, 136 } accept
             icmp type destination-unreachable accept
    forward  nothing
"""

from __future__ import annotations

import os
import socket
import struct
import sys

_NETFILTER = 12
_TABLE = b"cubicle\0"
_NLMSG_ERROR = 2
_BATCH_BEGIN, _BATCH_END = 16, 17
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 10 << 8, 10 << 8 | 3, 10 << 8 | 6
_REQUEST, _ACK, _CREATE, _APPEND = 1, 4, 0x400, 0x800
_INET = 1
_HOOKS = {"in": 1, "through": 2, "out": 3}
_META_IN, _META_OUT, _META_FAMILY, _META_PROTOCOL = 6, 7, 15, 16
_NETWORK, _TRANSPORT = 1, 2
_IPV4, _IPV4_TO = b"\x02", 16
_EQUAL, _NOT_EQUAL = 0, 1
_LOOPBACK = b"lo".ljust(16, b"\0")
_TCP, _ICMP, _ICMP6 = b"\x06", b"\x01", b"\x3a"
_FLAGS, _SYN, _SYN_ACK = 13, b"\x02", b"\x12"


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", len(data) + 4, kind) + data + b"\0" * (-len(data) % 4)


def _nested(kind: int, *parts: bytes) -> bytes:
    return _attribute(kind | 0x8000, b"".join(parts))


def _number(value: int) -> bytes:
    return struct.pack(">I", value)


def _expression(name: bytes, *parts: bytes) -> bytes:
    return _nested(1, _attribute(1, name + b"\0"), _nested(2, *parts))


def _meta(key: int) -> bytes:
    return _expression(b"meta", _attribute(2, _number(key)), _attribute(1, _number(1)))


def _payload(offset: int, length: int, header: int = _TRANSPORT) -> bytes:
    where = (_number(1), _number(header), _number(offset), _number(length))
    return _expression(b"payload", *(_attribute(kind, value) for kind, value in enumerate(where, 1)))


def _compare(value: bytes, how: int = _EQUAL) -> bytes:
    return _expression(b"cmp", _attribute(1, _number(1)), _attribute(2, _number(how)), _nested(3, _attribute(1, value)))


def _masked(mask: bytes) -> bytes:
    return _expression(
        b"bitwise",
        _attribute(1, _number(1)),
        _attribute(2, _number(1)),
        _attribute(3, _number(len(mask))),
        _nested(4, _attribute(1, mask)),
        _nested(5, _attribute(1, bytes(len(mask)))),
    )


def _verdict(code: int) -> bytes:
    return _expression(b"immediate", _attribute(1, _number(0)), _nested(2, _nested(2, _attribute(1, _number(code)))))


_ACCEPT, _DROP = _verdict(1), _verdict(0)
_PROHIBITED = _expression(b"reject", _attribute(1, _number(2)), _attribute(2, b"\x03"))
_RESET = _expression(b"reject", _attribute(1, _number(1)), _attribute(2, b"\x00"))


def _port(offset: int, port: int) -> bytes:
    """TCP with this port at the offset of its header: 0 is the source, 2 the destination."""
    return _meta(_META_PROTOCOL) + _compare(_TCP) + _payload(offset, 2) + _compare(struct.pack(">H", port))


def _icmp(protocol: bytes, kind: int) -> bytes:
    return _meta(_META_PROTOCOL) + _compare(protocol) + _payload(0, 1) + _compare(bytes([kind]))


def _to(address: str) -> bytes:
    family = _meta(_META_FAMILY) + _compare(_IPV4)
    return family + _payload(_IPV4_TO, 4, _NETWORK) + _compare(socket.inet_aton(address))


def rules(port: int, addresses: list[str], rejects: bool) -> list[tuple[str, bytes]]:
    """Each rule with its chain."""
    refuse, reset = (_PROHIBITED, _RESET) if rejects else (_DROP, _DROP)
    leaving, coming = _meta(_META_OUT) + _compare(_LOOPBACK), _meta(_META_IN) + _compare(_LOOPBACK)
    answers = _port(0, port) + _payload(_FLAGS, 1) + _masked(_SYN_ACK) + _compare(_SYN, _NOT_EQUAL)
    found = [
        ("out", leaving + _port(2, port) + reset),
        *(("out", leaving + _to(address) + refuse) for address in addresses),
        ("out", leaving + _ACCEPT),
        ("out", answers + _ACCEPT),
    ]
    # Without these IPv6 does not find its neighbours; commands cannot send them, for they have no raw sockets.
    found += [("out", _icmp(_ICMP6, kind) + _ACCEPT) for kind in (135, 136)]
    found += [("out", refuse), ("in", coming + _ACCEPT), ("in", _port(2, port) + _ACCEPT)]
    found += [("in", _icmp(_ICMP6, kind) + _ACCEPT) for kind in (2, 134, 135, 136)]
    return [*found, ("in", _icmp(_ICMP, 3) + _ACCEPT)]


def batch(port: int, addresses: list[str], rejects: bool) -> tuple[bytes, int]:
    """All messages as one transaction, and how many answers it gets."""
    flags = _REQUEST | _CREATE | _ACK
    bodies = [(_NEW_TABLE, flags, _attribute(1, _TABLE))]
    for chain, hook in _HOOKS.items():
        place = _nested(4, _attribute(1, _number(hook)), _attribute(2, _number(0)))
        policy = _attribute(5, _number(0)) + _attribute(7, b"filter\0")
        name = _attribute(1, _TABLE) + _attribute(3, chain.encode() + b"\0")
        bodies.append((_NEW_CHAIN, flags, name + place + policy))
    for chain, expressions in rules(port, addresses, rejects):
        name = _attribute(1, _TABLE) + _attribute(2, chain.encode() + b"\0")
        bodies.append((_NEW_RULE, flags | _APPEND, name + _nested(4, expressions)))
    whole = [(_BATCH_BEGIN, _REQUEST, b""), *bodies, (_BATCH_END, _REQUEST, b"")]
    messages = [_message(number, *one) for number, one in enumerate(whole, 1)]
    return b"".join(messages), len(bodies)


def _message(number: int, kind: int, flags: int, body: bytes) -> bytes:
    edge = kind in (_BATCH_BEGIN, _BATCH_END)
    family = struct.pack(">BBH", 0 if edge else _INET, 0, 10 if edge else 0)
    return struct.pack("=IHHII", len(body) + 20, kind, flags, number, 0) + family + body


def apply(port: int, addresses: list[str], rejects: bool) -> None:
    """Raises OSError if the kernel takes not every one of the rules; then it has taken none."""
    data, expected = batch(port, addresses, rejects)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER) as link:
        link.bind((0, 0))
        link.settimeout(5)
        link.send(data)
        while expected:
            heard = link.recv(65536)
            while heard:
                length, kind, _, number, _ = struct.unpack_from("=IHHII", heard)
                if kind == _NLMSG_ERROR:
                    error = -struct.unpack_from("=i", heard, 16)[0]
                    if error:
                        raise OSError(error, os.strerror(error) + f" (message {number})")
                    expected -= 1
                heard = heard[(length + 3) & ~3 :]


def main() -> None:
    port, addresses = int(sys.argv[1]), sys.argv[2:]
    try:
        apply(port, addresses, True)
    except OSError as error:
        sys.stderr.write(f"rules that reject are refused ({error}): rules that drop are tried\n")
        apply(port, addresses, False)


if __name__ == "__main__":
    main()
