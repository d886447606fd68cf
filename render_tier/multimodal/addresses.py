"""Which addresses images may be fetched from: a client's URL must not reach into the operator's network."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

TRANSLATED = (
    IPv6Network("64:ff9b::/96"),
    IPv6Network("64:ff9b:1::/48"),
    IPv6Network("2001::/32"),
    IPv6Network("2002::/16"),
)
"""IPv6 networks whose addresses a gateway turns into any IPv4 ones (NAT64, Teredo, 6to4)."""


class AddressRefused(ValueError):
    """An address that is not the public network's."""


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Raises ValueError for a text that is neither an address nor a network."""
    return tuple(ip_network(text) for text in texts)


def check_address(text: str, allowed: Sequence[Network]) -> None:
    """Raises AddressRefused for an address of a network that is not public, unless ``allowed`` holds it."""
    address: Address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if any(address in network for network in allowed if network.version == address.version):
        return
    # Some of what is not for unicast traffic, or for one site, counts as global.
    public = address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or (isinstance(address, IPv6Address) and address.is_site_local)
        or any(address in network for network in TRANSLATED if network.version == address.version)
    )
    if not public:
        raise AddressRefused(f"{address} is not a public address")
