"""The membership sources and declarations that the settings name, as objects."""

from __future__ import annotations

import os
from collections.abc import Mapping

from orchestrator.core.capabilities import NOTHING, Facts
from orchestrator.core.membership import ROLES, EndpointSlices, MemberSpec
from orchestrator.core.parity import Role
from orchestrator.membership_settings import Membership
from orchestrator.pool.sources.file import FileSource
from orchestrator.pool.sources.kubernetes import ApiServer, KubernetesSource, WatchLimits
from orchestrator.pool.sources.source import Source
from orchestrator.settings import Settings, parsed_config


def fixed_members(settings: Settings) -> list[MemberSpec]:
    """Those that the settings themselves name."""
    generation = settings.membership.generation
    return [MemberSpec(role, url, generation) for role in ROLES for url in getattr(settings.members, role)]


def declared_facts(settings: Settings) -> Mapping[Role, Facts]:
    """By role; a render tier reports what it is."""
    declared = settings.declared
    engines = Facts(**declared.engines.model_dump())
    return {
        "render": NOTHING,
        "prefill": Facts(**declared.prefill.model_dump()).over(engines),
        "decode": Facts(**declared.decode.model_dump()).over(engines),
        "encode": Facts(**declared.encode.model_dump()),
    }


def sources(settings: Settings) -> list[Source]:
    """Raises ``MembershipError`` when the settings need a pod around and there is none."""
    membership = settings.membership
    found: list[Source] = []
    if membership.file is not None:
        found.append(FileSource(membership.file, parsed_config, membership.file_interval))
    return [*found, *_dns(membership), *_kubernetes(membership)]


def _dns(membership: Membership) -> list[Source]:
    if not membership.dns:
        return []
    # An extra.
    from orchestrator.pool.sources.dns import DnsLimits, DnsSource

    host, _, port = (membership.dns_server or "").rpartition(":")
    resolver = (host.strip("[]"), int(port)) if host else None
    limits = DnsLimits(membership.dns_shortest, membership.dns_longest, membership.timeout)
    return [
        DnsSource(
            each.role,
            each.name,
            each.port,
            scheme=each.scheme,
            generation=each.generation,
            limits=limits,
            resolver=resolver,
        )
        for each in membership.dns
    ]


def _kubernetes(membership: Membership) -> list[Source]:
    if not membership.kubernetes:
        return []
    if membership.kubernetes_api is None:
        server = ApiServer.of_the_pod(os.environ)
    else:
        url = membership.kubernetes_api.rstrip("/")
        server = ApiServer(url, membership.kubernetes_token, membership.kubernetes_ca)
    limits = WatchLimits(
        answer=membership.timeout,
        watch=membership.kubernetes_watch,
        pause=membership.retry,
        longest_pause=membership.retry_longest,
        line_bytes=membership.event_bytes,
    )
    return [
        KubernetesSource(
            each.service,
            each.namespace,
            EndpointSlices(
                each.role,
                each.port,
                scheme=each.scheme,
                generation=each.generation,
                generation_label=each.generation_label,
            ),
            server,
            limits,
        )
        for each in membership.kubernetes
    ]
