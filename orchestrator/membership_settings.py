"""Settings of where members come from, what is declared of them, and who is kept out. Their place is in
``settings.Settings``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from orchestrator.core.parity import Role
from orchestrator.setting_types import Count, Port, Scheme, Seconds, Section, Url


class DnsMembers(Section):
    """One name. Without ``port`` it is an SRV name."""

    role: Role
    name: Annotated[str, Field(min_length=1)]
    port: Port | None = None
    scheme: Scheme = "http"
    generation: str = ""


class KubernetesMembers(Section):
    """One service, whose EndpointSlices are watched."""

    role: Role
    service: Annotated[str, Field(min_length=1)]
    namespace: str | None = None
    """The pod's own by default."""
    port: Port | str | None = None
    """Number or name; not needed where the slices have one port."""
    scheme: Scheme = "http"
    generation: str = ""
    generation_label: str | None = None
    """A label of the service, which its slices have too; wins over ``generation`` where it is set."""


class Membership(Section):
    """Where members come from beside ``members``. All are followed while the orchestrator runs."""

    generation: str = ""
    """Configuration generation of those in ``members``. Prefill and decode of different ones are never
    paired; a render tier with one renders for that one alone, and without one for all."""
    file: Path | None = None
    file_interval: Seconds = 1.0
    """After which the file is read again."""
    dns: tuple[DnsMembers, ...] = ()
    dns_server: Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:]+\]|[0-9.]+):\d+$")] | None = None
    """Address and port of the resolver; by default as the system is configured."""
    dns_shortest: Seconds = 1.0
    """A name is asked again when its time to live has passed, but not before this and not after the next."""
    dns_longest: Seconds = 30.0
    kubernetes: tuple[KubernetesMembers, ...] = ()
    kubernetes_api: Url | None = None
    """By default the API server of the cluster that this is a pod of, with the pod's token and CA."""
    kubernetes_token: Path | None = None
    kubernetes_ca: Path | None = None
    kubernetes_watch: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 300.0
    """After which a watch ends and a new one goes on; whole seconds."""
    timeout: Seconds = 5.0
    """For one answer of a resolver or an API server."""
    retry: Seconds = 1.0
    """After a failure of the API server; doubled for each further one, up to the next."""
    retry_longest: Seconds = 30.0
    event_bytes: Count = 4 * 2**20
    """One event of a watch."""

    @property
    def has_sources(self) -> bool:
        return self.file is not None or bool(self.dns) or bool(self.kubernetes)


class Parity(Section):
    """Members that disagree with the others are kept out."""

    min_version: str | None = None
    """Of engines; older ones are kept out."""
    recheck: Seconds = 30.0
    """After which what a member reports is read again, also when nothing has happened to it."""


class DeclaredFacts(Section):
    """Facts of engines that do not report them; they count as unverified. What an engine does report must be
    equal."""

    model: str | None = None
    revision: str | None = None
    tokenizer: str | None = None
    """The fingerprint that the render tier's ``/ready`` tells."""
    vocab_size: Count | None = None
    max_model_len: Count | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    block_size: Count | None = None
    kv_layout: str | None = None
    tensor_parallel: Count | None = None
    connector: str | None = None
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] | None = None
    ec_connector: str | None = None
    ec_role: Literal["ec_producer", "ec_consumer", "ec_both"] | None = None
    lease_seconds: Seconds | None = None
    turn_seconds: Seconds | None = None
    version: str | None = None
    tokens_only: bool | None = None
    structured_outputs: bool | None = None
    keeps_images: bool | None = None


class Declared(Section):
    engines: DeclaredFacts = DeclaredFacts()
    """Of prefill and decode engines; the next two win over it."""
    prefill: DeclaredFacts = DeclaredFacts()
    decode: DeclaredFacts = DeclaredFacts()
    encode: DeclaredFacts = DeclaredFacts()
