"""The two generate requests of a run, made from the render reply.

A render reply is kept as its top-level JSON fields, undecoded, so that everything in it that this code does
not know travels on untouched; only the prompt's IDs and the sampling params are read. Nothing is ever added
to the prompt: both legs carry the same IDs, since a decode engine does not notice a difference and answers
wrongly.

Sampling params that concern text (``stop``) are never sent: an engine without a tokenizer refuses them.
Derender matches stop strings and the orchestrator aborts decode. ``min_tokens`` stays on the decode leg,
where it holds back EOS and stop token IDs; for stop strings derender honours it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec

from orchestrator.core.item_store import Kept
from orchestrator.core.kv_params import PREFILL_PARAMS
from orchestrator.core.long_strings import Strings, cut, references, with_strings
from orchestrator.core.media import (
    Features,
    FeaturesError,
    Item,
    identified,
    lacks_data,
    read_media,
    renamed,
    with_data,
    without_data,
)  # fmt: skip
from orchestrator.core.pictures import Pictures, Place, read_pictures
from render_tier.protocol.unreadable import UNREADABLE

Placement = Literal["top", "extra_args", "both"]
"""Where an engine version reads transfer params: beside ``token_ids``, in ``sampling_params.extra_args``."""

TRANSFER_FIELDS: Final = ("kv_transfer_params", "ec_transfer_params")
"""Only the orchestrator writes these: a client's own could make an engine read foreign memory, hang or
die."""

OMITTED_MAX_TOKENS: Final = 16
"""A renderer that leaves out defaults leaves out exactly this value, while an engine reads absence as "no
limit"."""

_TOKEN_ONLY_FIELDS: Final = (
    "stop", "stop_token_ids", "bad_words", "logprobs", "logprob_token_ids", "structured_outputs",
    "thinking_token_budget", "repetition_detection", "stream_interval", "include_stop_str_in_output",
    "logit_bias", "allowed_token_ids",
)  # fmt: skip
"""Params that only shape sampled tokens, of which the prefill leg has none worth keeping."""


class RenderReplyError(ValueError):
    """The render tier answered something that is not a generate request."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """One prompt as render gave it."""

    fields: Mapping[str, msgspec.Raw]
    """Every top-level field, as JSON; `features` with references to ``strings``, and without what
    ``pictures`` has."""
    token_ids: list[int]
    """As engines compute them."""
    sampling: Mapping[str, Any]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    media: tuple[Item, ...] = ()
    lacks_data: bool = False
    """Some item of the media is there by name only."""
    form: str | None = None
    """Of its media: equal hashes stand for equal data where this is equal too. None where a client may have
    chosen a hash."""
    strings: Strings = ()
    """The data of its media."""
    encodings: Mapping[str, Mapping[str, Any]] | None = None
    """Of media that encoders have taken, by hash: what the engine needs to find it, in encoders' words."""
    pictures: Pictures | None = None
    """What engines are given of ``media`` in place of features."""
    warnings: Sequence[str] = ()
    """What render did not take from the request as it is."""

    @property
    def features_bytes(self) -> int:
        if self.pictures is not None:
            return self.pictures.size
        if not self.media:
            return 0
        return memoryview(self.fields["features"]).nbytes + sum(each.nbytes for each in self.strings)

    @property
    def choices(self) -> int:
        n = self.sampling.get("n", 1)
        return n if isinstance(n, int) and n >= 1 else 1

    @property
    def max_tokens(self) -> int:
        value = self.sampling.get("max_tokens")
        return value if isinstance(value, int) else OMITTED_MAX_TOKENS

    @property
    def has_stop_strings(self) -> bool:
        return bool(self.sampling.get("stop"))

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.sampling.get("prompt_logprobs") is not None

    @property
    def cache_identity(self) -> bytes:
        """What an engine's prefix cache depends on beside ``identified_ids``."""
        parts = (self.fields.get(name) for name in ("model", "cache_salt"))
        return b"\0".join(b"" if part is None else bytes(part) for part in parts)

    @property
    def identified_ids(self) -> Sequence[int]:
        """The prompt's IDs where KV is filed under them: each image has placeholders of its own."""
        return identified(self.token_ids, self.media)

    @property
    def model(self) -> str | None:
        raw = self.fields.get("model")
        return None if raw is None else msgspec.json.decode(raw, type=str | None)


class _Head(msgspec.Struct):
    token_ids: list[int]
    sampling_params: dict[str, Any]
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    features: Features | None = None
    content_parts: list[msgspec.Raw] | None = None
    content_places: list[Place] | None = None
    warnings: list[str] = []


_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_head_decoder = msgspec.json.Decoder(_Head)
_features_decoder = msgspec.json.Decoder(Features)
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def read_render_reply(body: bytes | msgspec.Raw) -> RenderedPrompt:
    """Parse one rendered prompt. Raises ``RenderReplyError``."""
    try:
        head, fields, strings = _read(body)
    except UNREADABLE as error:
        raise RenderReplyError(f"render reply: {error}") from error
    if not head.token_ids:
        raise RenderReplyError("render reply: no token_ids")
    token_ids, pictures = head.token_ids, None
    try:
        media, lacking = read_media(head.features, len(token_ids), strings), lacks_data(head.features)
        if head.content_parts:
            placed = read_pictures(token_ids, head.content_parts, head.content_places, strings)
            pictures, token_ids = placed.pictures, placed.token_ids
            media, lacking, strings = placed.items, placed.lacks_data, ()
            fields["token_ids"] = msgspec.Raw(msgspec.json.encode(token_ids))
            del fields["content_parts"], fields["content_places"]
    except FeaturesError as error:
        raise RenderReplyError(f"render reply: {error}") from error
    options = head.stream_options or {}
    return RenderedPrompt(
        fields=fields,
        token_ids=token_ids,
        sampling=head.sampling_params,
        stream=bool(head.stream),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        media=media,
        lacks_data=lacking,
        strings=strings,
        pictures=pictures,
        warnings=head.warnings,
    )


def _read(body: bytes | msgspec.Raw) -> tuple[_Head, dict[str, msgspec.Raw], Strings]:
    """A generate request and its fields, with the data of its media apart. Raises DecodeError,
    UnicodeDecodeError and RecursionError."""
    if isinstance(body, bytes) and (found := _DATA.search(body)) is not None:
        short, strings = cut(body, found[0])
        fields = _fields_decoder.decode(short)
        of_items = references(fields.get("features", b""))
        of_pictures = references(fields.get("content_parts", b""), behind=b'"url":')
        if len(strings) in (of_items, of_pictures):
            return _head_decoder.decode(short), fields, strings
        # A client has a key of that name elsewhere, or another long string follows.
    return _head_decoder.decode(body), _fields_decoder.decode(body), ()


def read_render_replies(body: bytes) -> list[RenderedPrompt]:
    """Parse the list of prompts that completions render answers with. Raises ``RenderReplyError``."""
    try:
        items = _list_decoder.decode(body)
    except UNREADABLE as error:
        raise RenderReplyError(f"render reply: {error}") from error
    if not items:
        raise RenderReplyError("render reply: no prompts")
    return [read_render_reply(item) for item in items]


def with_known_data(prompt: RenderedPrompt, known: Mapping[str, Kept]) -> RenderedPrompt:
    """``prompt`` with the data, by hash, of media that it only names, if they are not pictures."""
    if prompt.pictures is not None:
        return prompt
    of_its_form = {name: kept.data for name, kept in known.items() if kept.form == prompt.form}
    features, data = with_data(prompt.fields["features"], of_its_form, len(prompt.strings))
    strings = (*prompt.strings, *data)
    read = _features_decoder.decode(features)
    return replace(
        prompt,
        fields={**prompt.fields, "features": features},
        media=read_media(read, len(prompt.token_ids), strings),
        strings=strings,
        lacks_data=lacks_data(read),
    )


def with_media_named(prompt: RenderedPrompt, name: Callable[[str], str]) -> RenderedPrompt:
    """``prompt`` with other hashes of its media: ``name`` of each."""
    names = {item.hash: name(item.hash) for item in prompt.media}
    if all(old == new for old, new in names.items()):
        return prompt
    media = tuple(replace(item, hash=names[item.hash]) for item in prompt.media)
    if prompt.pictures is not None:
        return replace(prompt, media=media, pictures=prompt.pictures.renamed(names.__getitem__))
    features = renamed(prompt.fields["features"], names.__getitem__)
    return replace(prompt, media=media, fields={**prompt.fields, "features": features})


def named_apart(prompt: RenderedPrompt) -> RenderedPrompt:
    """``prompt`` with media whose hashes are no contents', where a client may have chosen one."""
    if prompt.form is not None:
        return prompt
    return with_media_named(
        prompt, lambda name: _GIVEN_NAME + sha256(name.encode(errors="surrogatepass")).hexdigest()
    )


def naming(prompt: RenderedPrompt, hashes: Collection[str]) -> RenderedPrompt:
    """``prompt`` that only names the media with these hashes."""
    fields = {**prompt.fields, "features": without_data(prompt.fields["features"], hashes)}
    return replace(prompt, fields=fields, lacks_data=True)


def can_continue(prompt: RenderedPrompt) -> bool:
    """Whether engines that are given prompt and output as their prompt go on as the first one would have.

    Not where sampling looks back at the output alone: a grammar, a budget of thinking tokens, penalties on
    what was sampled.
    """
    sampling = prompt.sampling
    looks_back = ("structured_outputs", "thinking_token_budget", "presence_penalty", "frequency_penalty",
                  "repetition_detection", "bad_words")  # fmt: skip
    return all(sampling.get(name) in (None, [], {}, 0, -1) for name in looks_back)


def continued(prompt: RenderedPrompt, output: list[int]) -> RenderedPrompt:
    """``output`` as part of the prompt, with what is left of the limits on output."""
    token_ids = prompt.token_ids + output
    least = prompt.sampling.get("min_tokens") or 0
    limits = {
        "max_tokens": prompt.max_tokens - len(output),
        "min_tokens": max(0, least - len(output)),
    }
    return replace(
        prompt,
        token_ids=token_ids,
        fields={**prompt.fields, "token_ids": msgspec.Raw(msgspec.json.encode(token_ids))},
        sampling={**prompt.sampling, **limits},
        pictures=None if prompt.pictures is None else prompt.pictures.followed_by(output),
    )


def out_of_vocabulary(token_ids: Sequence[int], vocab_size: int) -> int | None:
    """The first ID that no engine may see (one such ID ends a real engine), or None."""
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return None
    return next((token for token in token_ids if not 0 <= token < vocab_size), None)


def unsupported_feature(sampling: Mapping[str, Any], capabilities: Iterable[str]) -> str | None:
    """The first sampling param that was asked for and that the engines cannot or do not honour, or None.

    An engine without a tokenizer refuses the first two and silently ignores the third.
    """
    for name in ("structured_outputs", "thinking_token_budget", "bad_words"):
        if sampling.get(name) not in (None, [], {}, -1) and name not in capabilities:
            return name
    return None


def prefill_leg(
    prompt: RenderedPrompt, request_id: str, placement: Placement, turn: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Hop 2. It must end by length after one token, whatever the client asked for, or no KV is kept.

    ``prompt_logprobs`` stay: prefill is where they are computed. ``turn``: params of KV that a decode engine
    keeps of the prompt's beginning, to be read from there.
    """
    sampling = _own_sampling(prompt)
    for name in _TOKEN_ONLY_FIELDS:
        sampling.pop(name, None)
    sampling |= {"n": 1, "max_tokens": 1, "min_tokens": 0, "ignore_eos": True, "output_kind": _WHOLE}
    # ``turn`` names an engine and its blocks, and asks for a remote decode as PREFILL_PARAMS do.
    params = {**PREFILL_PARAMS, **(turn or {}), "do_remote_prefill": False}
    return _leg(prompt, request_id, sampling, params, placement, stream=False)


def decode_leg(
    prompt: RenderedPrompt,
    request_id: str,
    choice: int,
    kv_params: Mapping[str, Any] | None,
    placement: Placement,
    *,
    whole: bool = False,
) -> dict[str, Any]:
    """Hop 3 for choice number ``choice`` (0-based).

    Every choice is a request of its own with ``n`` 1, so a client's seed is shifted by the choice's number:
    the same seed would give the same text n times. ``whole`` asks for one JSON reply, the only kind that
    carries prompt logprobs; those are asked for only when no prefill leg reports them.
    """
    sampling = _own_sampling(prompt)
    sampling.pop("stop", None)
    sampling.pop("include_stop_str_in_output", None)
    sampling |= {"n": 1, "max_tokens": prompt.max_tokens, "output_kind": _WHOLE if whole else _DELTAS}
    seed = sampling.get("seed")
    if isinstance(seed, int):
        sampling["seed"] = _shifted_seed(seed, choice)
    if not whole or kv_params is not None:
        sampling.pop("prompt_logprobs", None)
    return _leg(prompt, request_id, sampling, kv_params, placement, stream=not whole)


def freeing_leg(
    prompt: RenderedPrompt, request_id: str, kv_params: Mapping[str, Any], placement: Placement
) -> dict[str, Any]:
    """A decode of one token whose only purpose is that the prefill engine's blocks are pulled and so
    freed."""
    request = prefill_leg(prompt, request_id, placement)
    sampling = request["sampling_params"]
    sampling.pop("prompt_logprobs", None)
    return _leg(prompt, request_id, sampling, kv_params, placement, stream=False)


_GIVEN_NAME: Final = "named-"
_DATA: Final = re.compile(rb'"(?:kwargs_data":|content_parts":\[)')
"""What the long strings of a reply's media follow on."""
_WHOLE, _DELTAS = 2, 1  # the engine's RequestOutputKind
_MAX_SEED: Final = 2**63 - 1


def _shifted_seed(seed: int, choice: int) -> int:
    """Stays within int64."""
    return seed + choice if seed <= _MAX_SEED - choice else seed - choice


def _own_sampling(prompt: RenderedPrompt) -> dict[str, Any]:
    """A copy of the sampling params without transfer params."""
    sampling = dict(prompt.sampling)
    extra = sampling.get("extra_args")
    if isinstance(extra, dict):
        kept = {name: value for name, value in extra.items() if name not in TRANSFER_FIELDS}
        sampling["extra_args"] = kept or None
    return sampling


def _leg(
    prompt: RenderedPrompt,
    request_id: str,
    sampling: dict[str, Any],
    kv_params: Mapping[str, Any] | None,
    placement: Placement,
    *,
    stream: bool,
) -> dict[str, Any]:
    request: dict[str, Any] = {k: v for k, v in prompt.fields.items() if k not in TRANSFER_FIELDS}
    if prompt.pictures is not None:
        request |= prompt.pictures.fields()
    elif prompt.media:
        request["features"] = with_strings(prompt.fields["features"], prompt.strings)
    transfer = {"kv_transfer_params": kv_params, "ec_transfer_params": prompt.encodings}
    params = {name: value for name, value in transfer.items() if value is not None}
    if params and placement != "extra_args":
        request |= params
    if params and placement != "top":
        sampling = sampling | {"extra_args": {**(sampling.get("extra_args") or {}), **params}}
    return request | {
        "request_id": request_id,
        "sampling_params": sampling,
        "stream": stream,
        # The engine's usage chunk is where a colocated engine reports its cached tokens.
        "stream_options": {"include_usage": True} if stream else None,
        "return_token_ids": None,
        "output_mode": "tokens",
    }
