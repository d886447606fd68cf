"""What is known of a member: the facts that it reports itself, and those that the configuration declares.

Facts are read from what vLLM's routes answer (``/v1/models``, ``/version``, ``/metrics``, and
``/server_info`` where the engine runs in its development mode; the embedded engine always has that one), and
from the transfer params of its own prefills. A reported fact is *verified*; a declared one that the member
does not report is used all the same and marked unverified. Where both exist they are compared
(``core.parity``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import msgspec

from render_tier.protocol.unreadable import UNREADABLE

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """None: not known."""

    model: str | None = None
    """What the engine was told to load: a path or a name."""
    revision: str | None = None
    """Of the weights."""
    tokenizer: str | None = None
    """Fingerprint of tokenizer and template."""
    vocab_size: int | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    block_size: int | None = None
    """Tokens in a block of the KV cache."""
    kv_layout: str | None = None
    tensor_parallel: int | None = None
    connector: str | None = None
    kv_role: str | None = None
    """``kv_producer``, ``kv_consumer`` or ``kv_both``."""
    ec_connector: str | None = None
    """How what encoders make of images gets from engine to engine."""
    ec_role: str | None = None
    """``ec_producer``, ``ec_consumer`` or ``ec_both``."""
    lease_seconds: float | None = None
    """How long prefilled KV is kept for a decode engine that does not come."""
    turn_seconds: float | None = None
    """How long a decode engine keeps a turn's KV for the next prefill. Of a prefill engine: that it can read
    such KV."""
    version: str | None = None
    tokens_only: bool | None = None
    """The engine has no tokenizer."""
    structured_outputs: bool | None = None
    keeps_images: bool | None = None
    """The engine has processed images at hand, by their hashes, for requests that only name them."""

    def items(self) -> Iterable[tuple[str, Value]]:
        """Those that are known, by name."""
        for name in FACT_NAMES:
            value = getattr(self, name)
            if value is not None:
                yield name, value

    def over(self, other: Facts) -> Facts:
        """These, and where they are silent the other's."""
        own: dict[str, Any] = dict(self.items())
        return replace(other, **own)


NOTHING: Final = Facts()

FACT_NAMES: Final = tuple(field.name for field in fields(Facts))


@dataclass(frozen=True, slots=True)
class Capabilities:
    """``reported`` by the member, ``declared`` by the configuration."""

    reported: Facts = NOTHING
    declared: Facts = NOTHING
    known: Facts = field(init=False, repr=False, compare=False)
    """A report counts for more than a declaration. Looked at for each member that a leg might go to, so made
    once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", self.reported.over(self.declared))

    def as_json(self) -> dict[str, dict[str, Any]]:
        """``{"block_size": {"value": 16, "verified": true}, …}``, of what is known."""
        return {
            name: {"value": value, "verified": getattr(self.reported, name) is not None}
            for name, value in self.known.items()
        }


# ---- readers: from an answer's body to facts; what cannot be read reports nothing --------------------------


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


class _Version(msgspec.Struct):
    version: str


class _Ready(msgspec.Struct):
    fingerprint: str | None = None
    vocab_size: int | None = None


class _Paused(msgspec.Struct):
    is_paused: bool


class _MultimodalConfig(msgspec.Struct):
    mm_processor_cache_gb: float | None = None
    mm_processor_cache_type: str | None = None


class _ModelConfig(msgspec.Struct):
    revision: str | None = None
    max_model_len: int | None = None
    dtype: str | None = None
    skip_tokenizer_init: bool | None = None
    vocab_size: int | None = None
    multimodal_config: _MultimodalConfig | None = None


class _CacheConfig(msgspec.Struct):
    block_size: int | None = None
    cache_dtype: str | None = None
    kv_cache_layout: str | None = None


class _ParallelConfig(msgspec.Struct):
    tensor_parallel_size: int | None = None
    data_parallel_size: int | None = None
    data_parallel_external_lb: bool | None = None
    api_process_count: int | None = msgspec.field(default=None, name="_api_process_count")


class _TransferConfig(msgspec.Struct):
    kv_connector: str | None = None
    kv_role: str | None = None
    kv_connector_extra_config: dict[str, Any] | None = None


class _EncoderTransferConfig(msgspec.Struct):
    ec_connector: str | None = None
    ec_role: str | None = None


class _Config(msgspec.Struct):
    model_config: _ModelConfig | None = None
    cache_config: _CacheConfig | None = None
    parallel_config: _ParallelConfig | None = None
    kv_transfer_config: _TransferConfig | None = None
    ec_transfer_config: _EncoderTransferConfig | None = None


class _ServerInfo(msgspec.Struct):
    vllm_config: _Config


def from_models(body: bytes) -> Facts:
    """``/v1/models``: the card of the base model, adapters left out."""
    try:
        cards = msgspec.json.decode(body, type=_Cards).data
    except UNREADABLE:
        return NOTHING
    card = next((card for card in cards if card.parent is None), None)
    return NOTHING if card is None else Facts(model=card.root, max_model_len=card.max_model_len)


def served_names(body: bytes) -> frozenset[str]:
    """The names in a ``/v1/models``."""
    try:
        return frozenset(card.id for card in msgspec.json.decode(body, type=_Cards).data)
    except UNREADABLE:
        return frozenset()


def from_version(body: bytes) -> Facts:
    """``/version``."""
    try:
        return Facts(version=msgspec.json.decode(body, type=_Version).version)
    except UNREADABLE:
        return NOTHING


def from_ready(body: bytes) -> Facts:
    """``/ready`` of our render tier."""
    try:
        ready = msgspec.json.decode(body, type=_Ready)
    except UNREADABLE:
        return NOTHING
    return Facts(tokenizer=ready.fingerprint, vocab_size=ready.vocab_size)


def from_server_info(body: bytes) -> Facts:
    """``/server_info?config_format=json``: vLLM's whole configuration."""
    try:
        config = msgspec.json.decode(body, type=_ServerInfo).vllm_config
    except UNREADABLE:
        return NOTHING
    model, cache = config.model_config or _ModelConfig(), config.cache_config or _CacheConfig()
    parallel, transfer = config.parallel_config or _ParallelConfig(), config.kv_transfer_config
    encoding = config.ec_transfer_config or _EncoderTransferConfig()
    without = model.skip_tokenizer_init
    return Facts(
        revision=model.revision,
        max_model_len=model.max_model_len,
        dtype=_dtype(model.dtype),
        vocab_size=model.vocab_size,
        tokens_only=without,
        structured_outputs=None if without is None else not without,
        keeps_images=_keeps_images(model.multimodal_config, parallel),
        block_size=cache.block_size,
        kv_dtype=_dtype(cache.cache_dtype),
        kv_layout=cache.kv_cache_layout,
        tensor_parallel=parallel.tensor_parallel_size,
        connector=transfer.kv_connector if transfer is not None else None,
        kv_role=transfer.kv_role if transfer is not None else None,
        ec_connector=encoding.ec_connector,
        ec_role=encoding.ec_role,
        lease_seconds=_lease(transfer),
        turn_seconds=_turn_seconds(transfer),
    )


def _keeps_images(media: _MultimodalConfig | None, parallel: _ParallelConfig) -> bool | None:
    """vLLM's engine process does, if one process alone sends it requests and its cache is of the kind that
    is filled by them."""
    if media is None or media.mm_processor_cache_gb is None or media.mm_processor_cache_type is None:
        return None
    alone = parallel.api_process_count in (None, 1) and (
        parallel.data_parallel_size in (None, 1) or parallel.data_parallel_external_lb is True
    )
    return alone and media.mm_processor_cache_gb > 0 and media.mm_processor_cache_type == "lru"


def is_paused(body: bytes) -> bool | None:
    """``/is_paused``: whether the engine schedules nothing new until it is resumed."""
    try:
        return msgspec.json.decode(body, type=_Paused).is_paused
    except UNREADABLE:
        return None


def _dtype(name: str | None) -> str | None:
    return None if name is None else name.removeprefix("torch.")


NIXL_LEASE: Final = 30.0
"""Seconds; what vLLM's NIXL connectors use when nothing is set."""


def _lease(transfer: _TransferConfig | None) -> float | None:
    if transfer is None or transfer.kv_connector is None:
        return None
    said = (transfer.kv_connector_extra_config or {}).get("kv_lease_duration")
    if isinstance(said, int | float) and said > 0:
        return float(said)
    return NIXL_LEASE if transfer.kv_connector.startswith("Nixl") else None


NIXL_TURN: Final = 480.0
"""Seconds; what vLLM's NIXL connector uses when nothing is set."""


def _turn_seconds(transfer: _TransferConfig | None) -> float | None:
    """The connector that pushes has no such transfer."""
    if transfer is None or transfer.kv_connector != "NixlConnector":
        return None
    extra = transfer.kv_connector_extra_config or {}
    said = extra.get("decoder_kv_blocks_ttl", NIXL_TURN)
    if extra.get("bidirectional_kv_xfer") is not True or not isinstance(said, int | float) or said <= 0:
        return None
    return float(said)


_CACHE_LINE: Final = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\} 1", re.MULTILINE)
_LABEL: Final = re.compile(rb'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


def from_metrics(exposition: bytes) -> Facts:
    """``/metrics``: the line that describes the KV cache. The page of a busy engine is long, so nothing else
    of it is parsed."""
    line = _CACHE_LINE.search(exposition)
    if line is None:
        return NOTHING
    labels = {name.decode(): value.decode(errors="replace") for name, value in _LABEL.findall(line.group(1))}
    block_size = labels.get("block_size", "")
    return Facts(
        block_size=int(block_size) if block_size.isdecimal() else None,
        kv_dtype=_said(labels.get("cache_dtype")),
        kv_layout=_said(labels.get("kv_cache_layout")),
    )


def _said(label: str | None) -> str | None:
    return None if label in (None, "None", "") else label


def from_abort_route(status: int) -> Facts:
    """The status of a GET of ``/abort_requests``, which only a vLLM without a tokenizer has, for POST
    alone."""
    if status == 405:
        return Facts(tokens_only=True, structured_outputs=False)
    return NOTHING


def from_transfer_params(params: Mapping[str, Any]) -> Facts:
    """What a prefill's transfer params say of the engine that gave them."""
    size = params.get("tp_size")
    return Facts(tensor_parallel=size if type(size) is int and size > 0 else None)
