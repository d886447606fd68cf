"""Who belongs to which role, as sources say it: plain lists, DNS answers, a members file, EndpointSlices.

A source gives the whole list each time. What has changed against the last one is a ``Change``, which the
pools carry out: joins, leaves, and members that are to be drained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import msgspec

from orchestrator.core.capabilities import FACT_NAMES, NOTHING, Facts
from orchestrator.core.parity import Role
from render_tier.protocol.unreadable import UNREADABLE

ROLES: tuple[Role, ...] = ("render", "prefill", "decode", "encode")

Key = tuple[Role, str]
"""Role and URL."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """``url`` has no slash at its end. ``drain``: no new work for it."""

    role: Role
    url: str
    generation: str = ""
    drain: bool = False
    declared: Facts = NOTHING

    @property
    def key(self) -> Key:
        return self.role, self.url


class MembershipError(ValueError):
    """What a source gave cannot be used; the message says where."""


@dataclass(frozen=True, slots=True)
class Change:
    joined: Sequence[MemberSpec]
    left: Sequence[MemberSpec]
    changed: Sequence[MemberSpec]
    """As they are now: drained or no longer, with other declarations."""


def merged(lists: Iterable[Iterable[MemberSpec]]) -> dict[Key, MemberSpec]:
    """All sources' members; of one named twice the first counts."""
    result: dict[Key, MemberSpec] = {}
    for specs in lists:
        for spec in specs:
            result.setdefault(spec.key, spec)
    return result


def change(before: Mapping[Key, MemberSpec], now: Mapping[Key, MemberSpec]) -> Change:
    """A member of another generation than before is another member at the same address."""

    def same(spec: MemberSpec, other: MemberSpec | None) -> bool:
        return other is not None and other.generation == spec.generation

    return Change(
        joined=[spec for key, spec in now.items() if not same(spec, before.get(key))],
        left=[spec for key, spec in before.items() if not same(spec, now.get(key))],
        changed=[
            spec for key, spec in now.items() if same(spec, before.get(key)) and spec != before.get(key)
        ],
    )


# ---- a members file ----------------------------------------------------------------------------------------


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    generation: str = ""
    drain: bool = False
    declared: dict[str, Any] = msgspec.field(default_factory=dict)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    render: list[str | _Entry] = msgspec.field(default_factory=list)
    prefill: list[str | _Entry] = msgspec.field(default_factory=list)
    decode: list[str | _Entry] = msgspec.field(default_factory=list)
    encode: list[str | _Entry] = msgspec.field(default_factory=list)


def from_file(values: Mapping[str, Any]) -> list[MemberSpec]:
    """``values``: a file's contents, each role a list of URLs or of tables with ``url``, ``generation``,
    ``drain`` and ``declared``. Raises ``MembershipError``."""
    try:
        file = msgspec.convert(values, _File)
    except msgspec.ValidationError as error:
        raise MembershipError(str(error)) from error
    specs = []
    for role in ROLES:
        for item in getattr(file, role):
            entry = _Entry(item) if isinstance(item, str) else item
            specs.append(
                MemberSpec(
                    role,
                    checked_url(entry.url),
                    entry.generation,
                    entry.drain,
                    declared_facts(entry.declared),
                )
            )
    return specs


def declared_facts(values: Mapping[str, Any]) -> Facts:
    """Raises ``MembershipError``."""
    unknown = values.keys() - set(FACT_NAMES)
    if unknown:
        raise MembershipError(f"declared: there is no {min(unknown)!r}; there are {', '.join(FACT_NAMES)}")
    try:
        return msgspec.convert(dict(values), Facts)
    except msgspec.ValidationError as error:
        raise MembershipError(f"declared: {error}") from error


def checked_url(url: str) -> str:
    """Raises ``MembershipError``."""
    scheme, found, rest = url.partition("://")
    if scheme not in ("http", "https") or not found or not rest.strip("/") or set(rest) & set("?# "):
        raise MembershipError(f"{url!r} is not an http or https URL without a query")
    return url.rstrip("/")


def base_url(scheme: str, host: str, port: int) -> str:
    """``host`` may be an IPv6 address."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


# ---- Kubernetes EndpointSlices -----------------------------------------------------------------------------


class _Conditions(msgspec.Struct):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Endpoint(msgspec.Struct):
    addresses: list[str] = msgspec.field(default_factory=list)
    conditions: _Conditions = msgspec.field(default_factory=_Conditions)


class _Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class _Metadata(msgspec.Struct):
    name: str = ""
    resourceVersion: str = ""
    labels: dict[str, str] | None = None


class _Slice(msgspec.Struct):
    metadata: _Metadata
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


class _SliceList(msgspec.Struct):
    metadata: _Metadata
    items: list[_Slice] | None = None


class _Event(msgspec.Struct):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


class Expired(MembershipError):
    """The API server no longer knows the version that was watched from: list again."""


@dataclass
class EndpointSlices:
    """The slices of one service, kept from a list and the events of a watch.

    ``port``: a number, or the name of a port of the slices; None: their only one. ``generation_label``: the
    label of a slice, copied there from its service, that names its members' generation. An endpoint that is
    ready is a member. One that is terminating and still serves is drained. Others are none.
    """

    role: Role
    port: int | str | None = None
    scheme: str = "http"
    generation: str = ""
    generation_label: str | None = None
    version: str = ""
    """To watch from."""
    _slices: dict[str, _Slice] = field(default_factory=dict)

    def listed(self, body: bytes) -> None:
        """The answer to a list. Raises ``MembershipError``."""
        answer = _decoded(body, _SliceList)
        self._slices = {item.metadata.name: item for item in answer.items or ()}
        self.version = answer.metadata.resourceVersion

    def happened(self, line: bytes) -> bool:
        """One event of a watch; whether the members may have changed. Raises ``MembershipError``, ``Expired``
        among it."""
        event = _decoded(line, _Event)
        if event.type == "ERROR":
            status = _decoded(event.object, _Status)
            kind = Expired if status.code == 410 else MembershipError
            raise kind(f"the API server ended the watch: {status.code} {status.message}")
        item = _decoded(event.object, _Slice)
        self.version = item.metadata.resourceVersion or self.version
        if event.type == "BOOKMARK":
            return False
        if event.type == "DELETED":
            self._slices.pop(item.metadata.name, None)
        else:
            self._slices[item.metadata.name] = item
        return True

    def members(self) -> list[MemberSpec]:
        """One for each address; an endpoint may be in two slices for a moment, and well in one of them is
        enough."""
        found: dict[str, MemberSpec] = {}
        for name in sorted(self._slices):
            item = self._slices[name]
            port = self._port(item)
            if port is None:
                continue
            labels = item.metadata.labels or {}
            generation = self.generation
            if self.generation_label is not None:
                generation = labels.get(self.generation_label, generation)
            for endpoint in item.endpoints or ():
                conditions = endpoint.conditions
                ready = conditions.ready is not False and not conditions.terminating
                draining = bool(conditions.terminating and conditions.serving)
                if not endpoint.addresses or not (ready or draining):
                    continue
                # Beyond the first one, addresses of an endpoint have no meaning that is agreed on.
                url = base_url(self.scheme, endpoint.addresses[0], port)
                if url not in found or found[url].drain:
                    found[url] = MemberSpec(self.role, url, generation, drain=not ready)
        return [found[url] for url in sorted(found)]

    def _port(self, item: _Slice) -> int | None:
        if isinstance(self.port, int):
            return self.port
        ports = [port for port in item.ports or () if port.port is not None]
        if self.port is not None:
            ports = [port for port in ports if port.name == self.port]
        return ports[0].port if len(ports) == 1 else None


def _decoded(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise MembershipError(f"what the API server sent cannot be read: {error}") from error
