"""Members from a real resolver: a name server on UDP that speaks the protocol's wire format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from orchestrator.pool.sources.dns import DnsLimits, DnsSource
from tests.orchestrator.pool.sources.told import followed

LIMITS = DnsLimits(shortest=0.005, longest=0.02, timeout=2.0)
Record = tuple[str, str]
"""Type and text."""


class NameServer(asyncio.DatagramProtocol):
    """``records`` by name; ``rcode`` set answers everything with it, ``silent`` with nothing."""

    def __init__(self) -> None:
        self.records: dict[str, list[Record]] = {}
        self.rcode: dns.rcode.Rcode | None = None
        self.silent = False
        self.questions = 0
        self.address = ("", 0)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.address = transport.get_extra_info("sockname")[:2]

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.questions += 1
        if self.silent:
            return
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA | dns.flags.AA
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True)
        if self.rcode is not None:
            answer.set_rcode(self.rcode)
        elif name not in self.records:
            answer.set_rcode(dns.rcode.NXDOMAIN)
        else:
            kind = dns.rdatatype.to_text(question.rdtype)
            texts = [text for record_kind, text in self.records[name] if record_kind == kind]
            if texts:
                answer.answer.append(dns.rrset.from_text(question.name, 1, "IN", kind, *texts))
        self._transport.sendto(answer.to_wire(), addr)


@asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()


def source(server: NameServer, name: str, port: int | None, scheme: str = "http") -> DnsSource:
    return DnsSource(
        "decode", name, port, scheme=scheme, generation="g", limits=LIMITS, resolver=server.address
    )


async def test_addresses_of_both_families_are_followed() -> None:
    async with name_server() as server:
        server.records["decode.test"] = [("A", "10.0.0.2"), ("A", "10.0.0.1"), ("AAAA", "fd00::1")]
        async with followed(source(server, "decode.test", 8000)) as told:
            await told.urls("http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://[fd00::1]:8000")
            assert {spec.generation for spec in told.lists[-1]} == {"g"}
            server.records["decode.test"] = [("A", "10.0.0.3")]
            await told.urls("http://10.0.0.3:8000")


async def test_targets_of_the_best_priority_are_members_with_their_ports() -> None:
    async with name_server() as server:
        server.records |= {
            "_http._tcp.decode.test": [
                ("SRV", "10 5 8001 a.test."),
                ("SRV", "10 5 8002 b.test."),
                ("SRV", "20 5 8003 spare.test."),
            ],
            "a.test": [("A", "10.0.0.1")],
            "b.test": [("AAAA", "fd00::2")],
            "spare.test": [("A", "10.0.0.9")],
        }
        async with followed(source(server, "_http._tcp.decode.test", None)) as told:
            await told.urls("http://10.0.0.1:8001", "http://[fd00::2]:8002")
            server.records["_http._tcp.decode.test"].pop(0)
            await told.urls("http://[fd00::2]:8002")
        async with followed(source(server, "_http._tcp.decode.test", None, "https")) as told:
            await told.urls("https://b.test:8002")


async def test_a_resolver_that_fails_changes_nothing() -> None:
    async with name_server() as server:
        server.records["decode.test"] = [("A", "10.0.0.1")]
        async with followed(source(server, "decode.test", 8000)) as told:
            await told.urls("http://10.0.0.1:8000")
            server.rcode = dns.rcode.SERVFAIL
            await told.failure()
            server.rcode = None
            server.records["decode.test"] = [("A", "10.0.0.2")]
            await told.urls("http://10.0.0.2:8000")
            assert all(len(specs) == 1 for specs in told.lists)


async def test_a_resolver_that_says_nothing_is_a_failure() -> None:
    async with name_server() as server:
        server.silent = True
        impatient = DnsLimits(shortest=0.005, longest=0.02, timeout=0.05)
        silent = DnsSource(
            "decode",
            "decode.test",
            1,
            scheme="http",
            generation="",
            limits=impatient,
            resolver=server.address,
        )
        async with followed(silent) as told:
            await told.failure(2)
            assert told.lists == []


async def test_that_there_is_nothing_is_believed_the_second_time() -> None:
    async with name_server() as server:
        server.records["decode.test"] = [("A", "10.0.0.1")]
        async with followed(source(server, "decode.test", 8000)) as told:
            await told.urls("http://10.0.0.1:8000")
            del server.records["decode.test"]
            await told.urls()
            assert told.failures == ["there is nothing under this name"]
