"""Which addresses are public."""

from __future__ import annotations

import pytest

from render_tier.multimodal.addresses import AddressRefused, check_address, networks


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.215.14", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public(address: str) -> None:
    check_address(address, ())


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fd00::1", "fec0::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::7f00:1"),
        *("64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:7f00:1::", "2001:0:7f00:1::"),
    ],
)
def test_not_public(address: str) -> None:
    with pytest.raises(AddressRefused):
        check_address(address, ())


def test_allowed_networks() -> None:
    allowed = networks(["10.2.0.0/16", "fd00:1::/32"])
    check_address("10.2.3.4", allowed)
    check_address("::ffff:10.2.3.4", allowed)
    check_address("fd00:1::5", allowed)
    for address in ("10.3.0.1", "fd00:2::5", "127.0.0.1"):
        with pytest.raises(AddressRefused):
            check_address(address, allowed)


def test_network_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"10\.2"):
        networks(["10.2.0.1/16"])
