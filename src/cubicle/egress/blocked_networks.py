"""Addresses that a sandbox must not reach through the service: its host, its networks, its cloud's metadata."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_METADATA: dict[str, str] = {
    "168.63.129.16": "the metadata service of a cloud",  # a public address, yet answered by the host itself
    "169.254.169.254": "the metadata service of a cloud",
    "169.254.170.2": "the credentials service of a cloud",
    "169.254.170.23": "the credentials service of a cloud",
    "100.100.100.200": "the metadata service of a cloud",
    "192.0.0.192": "the metadata service of a cloud",
    "fd00:ec2::254": "the metadata service of a cloud",
    "fd00:ec2::23": "the credentials service of a cloud",
    "fd20:ce::254": "the metadata service of a cloud",
}
_CLOSED: dict[str, str] = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by carriers (CGNAT)",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "set aside for protocols",
    "192.0.2.0/24": "set aside for documentation",
    "192.88.99.0/24": "a 6to4 relay",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "set aside for benchmarks",
    "198.51.100.0/24": "set aside for documentation",
    "203.0.113.0/24": "set aside for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "::1/128": "loopback",
    "::/96": "an IPv4-compatible form",
    "64:ff9b:1::/48": "a local NAT64 form",
    "100::/64": "a discard prefix",
    "2001::/32": "a Teredo form",
    "2001::/23": "set aside for protocols",
    "2001:db8::/32": "set aside for documentation",
    "2002::/16": "a 6to4 form",
    "3fff::/20": "set aside for documentation",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
}
METADATA = {ip_network(text): why for text, why in _METADATA.items()}
CLOSED = {ip_network(text): why for text, why in _CLOSED.items()}
_GLOBAL_6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")


def plain(address: Address) -> Address:
    """The address that a connection would really go to: an IPv4-mapped one is the IPv4 one."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def faces(address: Address) -> tuple[Address, ...]:
    """Everything that the address stands for: behind a NAT64 form lies an IPv4 address, too."""
    address = plain(address)
    if isinstance(address, IPv6Address) and address in _NAT64:
        return address, IPv4Address(int(address) & 0xFFFFFFFF)
    return (address,)


@lru_cache(4096)
def closed_range(address: Address) -> str | None:
    """Why the address is closed to sandboxes, or None."""
    for face in faces(address):
        for table in (METADATA, CLOSED):
            for network, why in table.items():
                if face in network:
                    return why
        if isinstance(face, IPv6Address) and face not in _GLOBAL_6 and face not in _NAT64:
            return "not a global address"
    return None


def opens(network: Network, address: Address) -> bool:
    """Whether a rule for this network is meant for this closed address.

    A network that also holds open addresses is not: 0.0.0.0/0 is no permission to reach the host. What a cloud tells
    its machines in confidence, and single open addresses, have to be named one by one.
    """
    hits = [face for face in faces(address) if face.version == network.version and face in network]
    if not hits:
        return False
    if network.prefixlen == network.max_prefixlen:
        return True
    if any(face in secret for face in hits for secret in METADATA if face.version == secret.version):
        return False
    return any(_within(network, closed) for closed in CLOSED)


def _within(network: Network, other: Network) -> bool:
    if isinstance(network, IPv4Network):
        return isinstance(other, IPv4Network) and network.subnet_of(other)
    return isinstance(other, IPv6Network) and network.subnet_of(other)
