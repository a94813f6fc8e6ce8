"""Names for programs that look them up themselves: each gets an address that leads to the proxy and to nothing else."""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from ipaddress import IPv4Address, IPv4Network

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from cubicle.egress.policy import BadTarget, host_name

RANGE = IPv4Network("198.18.0.0/15")
_MAX_COUNT = 16_384
_TTL = 60
_MAX_QUERY = 1232


class BadQuery(Exception):
    """Not a query of DNS."""


def _is_small(query: bytes) -> bool:
    """Whether it is of a size and shape that programs send: the parser follows pointers for seconds in a large one."""
    if not 12 <= len(query) <= _MAX_QUERY:
        return False
    _, _, questions, answers, authorities, additional = struct.unpack_from(">6H", query)
    return bool(questions <= 1 and answers == authorities == 0 and additional <= 2)


class FakeDns:
    """Which name an address stands for, in one sandbox; the name that was asked for longest ago is forgotten first."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, IPv4Address] = OrderedDict()
        self._names: dict[IPv4Address, str] = {}

    def address(self, name: str) -> IPv4Address:
        address = self._addresses.get(name)
        if address is None:
            if len(self._addresses) >= _MAX_COUNT:
                _, oldest = self._addresses.popitem(last=False)
                del self._names[oldest]
            address = self._free_address(name)
            self._addresses[name] = address
            self._names[address] = name
        self._addresses.move_to_end(name)
        return address

    def _free_address(self, name: str) -> IPv4Address:
        """By the name itself: a program that kept an address still means the same name when this object is new."""
        place = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        while (address := RANGE[1 + place % (RANGE.num_addresses - 2)]) in self._names:
            place += 1
        return address

    def name(self, address: IPv4Address) -> str | None:
        return self._names.get(address)

    def answer(self, query: bytes) -> bytes:
        """The answer to a query; nothing is looked up, as only a connection needs to know whether a name exists."""
        if not _is_small(query):
            raise BadQuery
        try:
            asked = dns.message.from_wire(query)
            answer = dns.message.make_response(asked, recursion_available=True)
            if len(asked.question) != 1:
                answer.set_rcode(dns.rcode.FORMERR)
                return answer.to_wire()
            question = asked.question[0]
            name = host_name(question.name.to_text(omit_final_dot=True))
        except BadTarget:
            answer.set_rcode(dns.rcode.NXDOMAIN)
            return answer.to_wire()
        except (dns.exception.DNSException, ValueError) as error:
            raise BadQuery from error
        if (question.rdclass, question.rdtype) == (dns.rdataclass.IN, dns.rdatatype.A):
            answer.answer.append(dns.rrset.from_text(question.name, _TTL, "IN", "A", str(self.address(name))))
        return answer.to_wire()
