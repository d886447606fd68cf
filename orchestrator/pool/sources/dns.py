"""Members from DNS: all addresses of a name (A and AAAA), or all targets of an SRV name.

Asked again when the answer's time to live has passed, within bounds. A resolver that fails changes nothing.
That there is no such name, or nothing under it, is believed when it was said twice in a row: it is what a
resolver says that has just been started, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver
from dns.rdtypes.IN.A import A
from dns.rdtypes.IN.AAAA import AAAA
from dns.rdtypes.IN.SRV import SRV

from orchestrator.core.membership import MemberSpec, base_url
from orchestrator.core.parity import Role
from orchestrator.pool.sources.source import Failed, Tell


@dataclass(frozen=True, slots=True)
class DnsLimits:
    """Seconds. ``shortest`` and ``longest`` bound the time between two questions, ``timeout`` the wait for
    one answer."""

    shortest: float
    longest: float
    timeout: float


@dataclass(frozen=True, slots=True)
class Found:
    endpoints: Sequence[tuple[str, int]]
    """Host or address, and port."""
    ttl: float


class DnsSource:
    """``port`` None: ``name`` is an SRV name, which tells ports. Of its targets those of the best (lowest)
    priority are taken, whatever their weights. ``resolver`` None: as the system is configured."""

    def __init__(
        self,
        role: Role,
        name: str,
        port: int | None,
        *,
        scheme: str,
        generation: str,
        limits: DnsLimits,
        resolver: tuple[str, int] | None = None,
    ) -> None:
        self.name = f"dns {name}"
        self._role: Role = role
        self._query = name
        self._port = port
        self._scheme = scheme
        self._generation = generation
        self._limits = limits
        self._resolver_address = resolver

    async def follow(self, tell: Tell, failed: Failed) -> None:
        resolver: dns.asyncresolver.Resolver | None = None
        nothing_before = False
        while True:
            wait = self._limits.shortest
            try:
                if resolver is None:
                    resolver = await asyncio.to_thread(self._resolver)
                found = await self._find(resolver)
            except (dns.exception.DNSException, OSError, ValueError) as error:
                failed(str(error) or type(error).__name__)
            else:
                if found.endpoints or nothing_before:
                    tell(self._specs(found.endpoints))
                    wait = min(max(found.ttl, self._limits.shortest), self._limits.longest)
                else:
                    failed("there is nothing under this name")
                nothing_before = not found.endpoints
            await asyncio.sleep(wait)

    def _resolver(self) -> dns.asyncresolver.Resolver:
        """Reads the system's configuration, unless there is an address."""
        if self._resolver_address is None:
            resolver = dns.asyncresolver.Resolver()
        else:
            resolver = dns.asyncresolver.Resolver(configure=False)
            resolver.nameservers = [self._resolver_address[0]]
            resolver.port = self._resolver_address[1]
        resolver.lifetime = self._limits.timeout
        return resolver

    def _specs(self, endpoints: Sequence[tuple[str, int]]) -> list[MemberSpec]:
        urls = dict.fromkeys(base_url(self._scheme, host, port) for host, port in endpoints)
        return [MemberSpec(self._role, url, self._generation) for url in sorted(urls)]

    async def _find(self, resolver: dns.asyncresolver.Resolver) -> Found:
        """Raises ``DNSException``."""
        if self._port is not None:
            return await _addresses(resolver, self._query, self._port)
        answer = await _ask(resolver, self._query, "SRV")
        records = [record for record in answer or () if isinstance(record, SRV)]
        if answer is None or answer.rrset is None or not records:
            return Found((), self._limits.shortest)
        best = min(record.priority for record in records)
        targets = [(str(r.target).rstrip("."), r.port) for r in records if r.priority == best]
        if self._scheme == "https":
            # The name is what the certificate is checked against.
            return Found(targets, answer.rrset.ttl)
        found = await asyncio.gather(*(_addresses(resolver, host, port) for host, port in targets))
        endpoints = [endpoint for each in found for endpoint in each.endpoints]
        return Found(endpoints, min([answer.rrset.ttl, *(each.ttl for each in found if each.endpoints)]))


async def _addresses(resolver: dns.asyncresolver.Resolver, host: str, port: int) -> Found:
    answers = await asyncio.gather(_ask(resolver, host, "A"), _ask(resolver, host, "AAAA"))
    rrsets = [answer.rrset for answer in answers if answer is not None and answer.rrset is not None]
    addresses = [
        (record.address, port) for rrset in rrsets for record in rrset if isinstance(record, A | AAAA)
    ]
    return Found(addresses, min((rrset.ttl for rrset in rrsets), default=0.0))


async def _ask(resolver: dns.asyncresolver.Resolver, name: str, kind: str) -> dns.resolver.Answer | None:
    """None: there is no such name, or nothing of this kind under it."""
    try:
        return await resolver.resolve(name, kind, search=True)
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
        return None
