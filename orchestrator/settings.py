"""Every setting of the orchestrator: one frozen object, unknown keys refused.

``deploy/orchestrator.example.toml`` shows each key with its default. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml  # type: ignore[import-untyped]
from pydantic import Field, SecretStr, field_validator, model_validator

from orchestrator.core.parity import Role
from orchestrator.kv_event_settings import KvEvents
from orchestrator.membership_settings import Declared, Membership, Parity
from orchestrator.security_settings import Auth, MemberTls, ServerTls
from orchestrator.setting_types import Count, Seconds, Section, Url
from orchestrator.turn_settings import ConversationSettings, StoreSettings, TurnSettings

POD_VARIABLE = "KUBERNETES_SERVICE_HOST"
"""Set in every pod."""

Selection = Literal["round_robin", "least_active", "power_of_two", "session_affinity"]
EngineSelection = Literal[
    "round_robin", "least_active", "power_of_two", "session_affinity", "prefix_affinity"
]
Capability = Literal["structured_outputs", "thinking_token_budget", "bad_words"]


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


class Server(Section):
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    workers: Count = 1
    """Processes on the same port. Places, breakers and what is remembered of members count in each."""
    grace: Seconds = 30.0
    """After SIGTERM, running requests may take this long; then they end with an error."""
    sse_keepalive: Seconds | None = None
    """A comment goes out when a stream has been silent for so long, also before its first output, for
    proxies that drop idle connections. An error after the first comment is an event, not an HTTP status."""
    keepalive: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 75.0
    """How long a client's idle connection is kept; whole seconds."""
    header_bytes: Count = 64 * 1024
    """Of a request: its line and its headers."""
    header_timeout: Seconds = 20.0
    """Until they have arrived; a connection that sends nothing is closed after it too."""
    tls: ServerTls = ServerTls()
    admin_key: SecretStr | None = None
    """Bearer token for ``/status`` and ``/admin``, with ``auth`` for ``/metrics`` too. Without it these
    answer only from this machine."""
    recent_requests: Count = 1024
    """Whose hop latencies ``/status`` tells."""
    explained_requests: Count = 256
    """Whose decisions are kept for ``pd-orchestrator explain``; of each worker."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"


class Members(Section):
    """Base URLs of each role. Without prefill members the decode engines also prefill (three hops). Images go
    to encode members first, where there are any."""

    render: tuple[Url, ...] = ()
    prefill: tuple[Url, ...] = ()
    decode: tuple[Url, ...] = ()
    encode: tuple[Url, ...] = ()
    render_api_key: SecretStr | None = None
    engine_api_key: SecretStr | None = None
    tls: MemberTls = MemberTls()

    @field_validator("render", "prefill", "decode", "encode")
    @classmethod
    def _no_trailing_slash(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(url.rstrip("/") for url in urls))


class Selections(Section):
    render: Selection = "round_robin"
    prefill: EngineSelection = "prefix_affinity"
    decode: EngineSelection = "power_of_two"
    encode: Selection = "session_affinity"
    """With ``session_affinity`` an image is what a session is elsewhere: one that is shown again goes to the
    encoder that had it."""
    load_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.25
    """A member with more than this times its share of the work is left out by the affinity policies."""
    prefix_block_tokens: Count = 64
    """Prompts are compared in blocks of so many IDs; a multiple of the engines' own block size."""
    prefix_blocks: Count = 512
    """Of one prompt that are looked at."""
    prefix_index_blocks: Count = 200_000
    """That are remembered for each role."""


class Health(Section):
    interval: Seconds = 2.0
    timeout: Seconds = 2.0
    path_render: str = "/ready"
    """Also read from a render tier without it: 404 falls back to ``/health``."""
    path_engine: str = "/health"
    breaker_threshold: Count = 3
    """Failures in a row that open a member's breaker."""
    breaker_cooldown: Seconds = 5.0


class Sessions(Section):
    """Derender over WebSockets, where the render tier offers it; single calls elsewhere."""

    enabled: bool = True
    streams_per_connection: Count = 64
    """More streams open another connection to the same member, which may be another of its processes."""
    heartbeat: Seconds = 10.0
    """Between two pings of a connection."""
    recheck: Seconds = 10.0
    """After which a member that offered no sessions is asked again."""


class Timeouts(Section):
    request: Seconds = 600.0
    """The whole request. A client can shorten it (``X-Request-Timeout`` header or ``timeout`` in the
    body)."""
    body: Seconds = 60.0
    """Until the client has sent its whole body."""
    connect: Seconds = 3.0
    keepalive: Seconds = 4.0
    """Idle connections are closed before the servers' usual 5 s would."""
    render: Seconds = 30.0
    encode: Seconds = 30.0
    """For one image."""
    prefill: Seconds = 120.0
    decode_first: Seconds = 120.0
    """Until decode's first token: queueing, KV transfer and one step."""
    decode_idle: Seconds = 60.0
    """Between two chunks of a decode stream."""
    derender: Seconds = 30.0
    abort: Seconds = 5.0
    cleanup: Seconds = 60.0
    """Draining a decode whose client is gone, or freeing held KV."""


class Lease(Section):
    """How long prefilled KV may be used. Must match the engines' own setting (30 s is vLLM's default)."""

    engine_seconds: Seconds = 30.0
    fraction: Annotated[float, Field(gt=0, le=1)] = 2 / 3
    """Our own deadline, as a fraction of the engine's lease."""
    renewed_by_decode: bool = True
    """A decode engine that waits with the params renews the lease, so our deadline ends when decode is
    sent."""
    kv_bytes_per_token: Count | None = None
    """Of the served model, over all its layers. When set, stranded KV is counted in bytes too."""


class PolicySettings(Section):
    held_kv: Literal["free", "lease"] = "free"
    """KV of a request given up between prefill and decode: pull it with a one-token decode, or let the lease
    end."""
    abort_decode: Literal["first_token", "at_once"] = "first_token"
    """When decode may be aborted. Some engine versions crash when aborted during the KV transfer."""
    prefill_failure: Literal["fail", "recompute"] = "fail"
    """Prefill delivers nothing: an error, or decode computes the prompt."""
    encode_failure: Literal["whole", "fail"] = "whole"
    """No encoder takes an image: the engine that gets the prompt computes it, or an error."""
    encoded_images: Literal["whole", "metadata"] = "whole"
    """What that engine gets of an image that is encoded: all of it, to compute the image where it does not
    find what the encoder has made, or only what the placeholders need. With "metadata" an engine that does
    not find it fails; a vLLM with the ECExampleConnector ends. Not beside ``known_images = "named"``."""
    known_images: Literal["whole", "named"] = "whole"
    """What an engine gets of an image that it has been given before: all of it, or its name, and all of it
    where it does not have it any more. A vLLM that keeps no images (``--mm-processor-cache-gb 0`` or type
    ``shm``, several API servers, data parallel ranks behind one address) may end when it gets a name."""
    engine_image_cache_bytes: Count = 2**30
    """Of the images that an engine is taken to keep. Less than it has for them (vLLM's
    ``--mm-processor-cache-gb``, 4 GiB), since others fill it too."""
    render_attempts: Count = 2
    encode_attempts: Count = 2
    """For each image."""
    prefill_attempts: Count = 2
    decode_attempts: Count = 2
    retry_lone_decode: bool = False
    """Whether a decode engine that answers 5xx is asked again, after a fresh prefill, when there is no
    other."""
    derender_attempts: Count = 2
    continuations: Annotated[int, Field(ge=0)] = 0
    """How often a stream whose decode fails after visible output may go on elsewhere: prompt and output so
    far are prefilled again and decoded from there. Unless sampling is greedy, the rest is another sample than
    the failed engine would have given. 0: an error event ends the stream."""
    skip_prefill_for_one_token: bool = True
    """A request for one token is decoded without a prefill leg."""
    skip_prefill_below_tokens: Annotated[int, Field(ge=0)] = 0
    """As above for prompts shorter than this."""
    skip_prefill_below_uncached_tokens: Annotated[int, Field(ge=0)] = 0
    """As above when fewer than so many of the prompt's tokens are not cached on the decode member that would
    take it; 0: never for this reason."""
    kv_params_placement: Literal["top", "extra_args", "both"] = "top"
    """Where the engines read ``kv_transfer_params``."""
    engine_capabilities: frozenset[Capability] = frozenset()
    """What the engines can beyond plain sampling. Requests that need anything else are refused (400)."""
    client_features: bool = False
    """Whether clients of token IDs may send ``features`` of images. Engines compute from the tensors in
    them as they are."""
    vocab_size: Count | None = None
    """When set, prompt IDs are checked against it before an engine sees them."""


class Limits(Section):
    body_bytes: Count = 24 * 2**20
    """Of a client's request. Derender gets it once more together with the prompt's IDs and output, so this
    stays below the render tier's own bound (``max_body_bytes``, 32 MiB)."""
    reply_bytes: Count = 256 * 2**20
    features_bytes: Count = 2 * 2**30
    """Of the images of all requests under way in a process, which are kept to be sent again; what does not
    fit is refused (503)."""
    kept_image_bytes: Annotated[int, Field(ge=0)] = 256 * 2**20
    """Of images that were rendered, kept in a process so that render need not send them again."""
    event_bytes: Count = 64 * 2**20
    """One server-sent event, or one JSON reply, of a decode engine."""
    error_bytes: Count = 64 * 2**10
    runs_per_request: Count = 128
    """Prompts times choices."""
    pending_tokens: Count = 512
    """Tokens of one choice that wait for derender before the engine is no longer read."""
    pending_frames: Count = 256
    """Chunks of one request that wait for a slow client."""
    remembered_params: Count = 100_000
    """Transfer params whose second appearance is noticed."""


class Admission(Section):
    """How much may be under way, and how much may wait. A request waits for a place as a request, each of its
    runs for one at the role that it needs next."""

    requests: Count = 4096
    """Client requests under way at a time."""
    render_per_member: Count = 256
    """Render calls at a time, times the members that are well; so are the next three."""
    encode_per_member: Count = 16
    prefill_per_member: Count = 256
    decode_per_member: Count = 1024
    encode_per_request: Count = 8
    """Images of one prompt that are with encoders, or wait for them, at a time."""
    queue: Annotated[int, Field(ge=0)] = 1024
    """What may wait for each of these; more is refused (503)."""
    queue_per_tenant: Count = 512
    """What one tenant may have waiting for each of these; more is refused (429)."""
    max_wait: Seconds = 15.0
    """For one place; then 503. Shorter than the time that prefilled KV may be used."""
    tenant_header: str | None = "X-Tenant-Id"
    """Names the tenant. Without it, or without a value, the ``Authorization`` header does. With ``auth.keys``
    the key names it, and no header."""
    drain_memory: Seconds = 30.0
    """Over how long the drain rate is measured, from which ``Retry-After`` follows."""
    retry_after_unmeasured: Count = 2
    retry_after_longest: Count = 60


class Tracing(Section):
    """Traces of requests by OpenTelemetry, over OTLP/HTTP. Needs the extra ``otel``."""

    endpoint: Url | None = None
    """Where traces are sent, like http://collector:4318/v1/traces; none are recorded without it. Everything
    else is OpenTelemetry's own: ``OTEL_SERVICE_NAME``, ``OTEL_TRACES_SAMPLER`` and so on."""

    @field_validator("endpoint")
    @classmethod
    def _can_be_sent(cls, endpoint: str | None) -> str | None:
        if endpoint is not None and not _installed("opentelemetry.exporter.otlp.proto.http"):
            raise ValueError("needs the extra otel: pip install opentelemetry-exporter-otlp-proto-http")
        return endpoint


class Settings(Section):
    server: Server = Server()
    auth: Auth = Auth()
    members: Members = Members()
    membership: Membership = Membership()
    declared: Declared = Declared()
    parity: Parity = Parity()
    selection: Selections = Selections()
    kv_events: KvEvents = KvEvents()
    health: Health = Health()
    sessions: Sessions = Sessions()
    timeouts: Timeouts = Timeouts()
    lease: Lease = Lease()
    turns: TurnSettings = TurnSettings()
    conversations: ConversationSettings = ConversationSettings()
    store: StoreSettings = StoreSettings()
    policy: PolicySettings = PolicySettings()
    limits: Limits = Limits()
    admission: Admission = Admission()
    tracing: Tracing = Tracing()

    @model_validator(mode="after")
    def _followed_are_engines(self) -> Settings:
        events = self.kv_events
        engines = {"prefill": self.members.prefill, "decode": self.members.decode}
        looked_at = [role for role in engines if self.indexes(role)]
        takes = (
            "that takes prefix_affinity as the selection of its role, or for decode"
            " policy.skip_prefill_below_uncached_tokens"
        )
        if events.template is not None and not looked_at:
            raise ValueError(f"kv_events.template: nothing looks at what engines hold; {takes}")
        for url in events.endpoints:
            roles = [role for role, urls in engines.items() if url.rstrip("/") in urls]
            if not roles and not self.membership.has_sources:
                raise ValueError(f"kv_events: {url} is not one of members.prefill or members.decode")
            if not set(roles or engines) & set(looked_at):
                raise ValueError(f"kv_events.endpoints: nothing looks at what {url} holds; {takes}")
        if events.wanted and not _installed("zmq"):
            raise ValueError("kv_events needs the extra kv-events: pip install pyzmq")
        return self

    @model_validator(mode="after")
    def _names_are_of_contents(self) -> Settings:
        if self.policy.known_images == "named" and self.policy.client_features:
            raise ValueError(
                "policy.known_images: with client_features any client could give an image another's name"
            )
        return self

    @model_validator(mode="after")
    def _names_are_of_whole_images(self) -> Settings:
        """A vLLM keeps the metadata of an encoded image under the image's own name. Which of two legs, or of
        two orchestrators, it comes to first is known to nobody here; and it ends of a name for an image of
        which it has no more than that."""
        if self.policy.known_images == "named" and self.policy.encoded_images == "metadata":
            raise ValueError(
                "policy.known_images: with encoded_images = metadata an engine may have no more than the"
                " metadata of what it is sent the name of, and end"
            )
        return self

    @model_validator(mode="after")
    def _sources_can_be_asked(self) -> Settings:
        membership = self.membership
        if membership.dns and importlib.util.find_spec("dns") is None:
            raise ValueError("membership.dns needs the extra dns: pip install dnspython")
        if membership.kubernetes and not membership.kubernetes_api and POD_VARIABLE not in os.environ:
            raise ValueError(
                f"membership.kubernetes outside a pod ({POD_VARIABLE} is not set) needs kubernetes_api"
            )
        return self

    def expects(self, role: Role) -> bool:
        """Whether there is a source of members of ``role``. What a file will say is not known."""
        membership = self.membership
        roles = {source.role for source in membership.dns} | {each.role for each in membership.kubernetes}
        return bool(getattr(self.members, role)) or role in roles

    def indexes(self, role: str) -> bool:
        """Whether anything looks at what the members of ``role`` have cached."""
        by_policy = role == "decode" and self.policy.skip_prefill_below_uncached_tokens > 0
        return by_policy or getattr(self.selection, role) == "prefix_affinity"

    def digest(self) -> str:
        """Short hash of the effective values, secrets left out."""
        return hashlib.sha256(json.dumps(self.redacted(), sort_keys=True).encode()).hexdigest()[:16]

    def redacted(self) -> dict[str, Any]:
        values = self.model_dump(mode="json")
        policy = values["policy"]
        policy["engine_capabilities"] = sorted(policy["engine_capabilities"])
        return values


class ConfigError(ValueError):
    """A configuration file that cannot be used; the message names the file and the key."""


def read_config(path: Path) -> dict[str, Any]:
    """The contents of a TOML, YAML or JSON file, by its suffix. Raises ``ConfigError``."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return parsed_config(path, text)


def parsed_config(path: Path, text: str) -> dict[str, Any]:
    """``text`` is the contents of ``path``. Raises ``ConfigError``."""
    try:
        if path.suffix == ".toml":
            values: Any = tomllib.loads(text)
        elif path.suffix in (".yaml", ".yml"):
            values = yaml.safe_load(text)
        elif path.suffix == ".json":
            values = json.loads(text)
        else:
            raise ConfigError(f"{path}: the suffix must be .toml, .yaml, .yml or .json")
    except (ValueError, yaml.YAMLError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path}: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: the top level must be a table")
    return values


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` laid on ``base``, section by section."""
    result = dict(base)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result
