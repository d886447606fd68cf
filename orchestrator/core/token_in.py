"""A client's own generate request (``POST /inference/v1/generate``): from its bytes to a prompt for the legs.

No render tier has looked at it, so what a render tier would have made sure of is checked here: types, what
the legs rely on, and what engines without a tokenizer cannot do. The other rules about sampling are the
engine's, whose refusal is passed on. Only fields that the API has travel on; what engines tell each other
does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from orchestrator.core.client_features import check_client_features
from orchestrator.core.legs import RenderedPrompt
from orchestrator.core.media import Features, FeaturesError, lacks_data, read_media
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.generate import SamplingParams, StreamOptions
from render_tier.protocol.unreadable import UNREADABLE

FIELDS: Final = (
    "token_ids", "sampling_params", "model", "cache_salt", "priority", "features", "reasoning_ended",
    "reasoning_parser_kwargs",
)  # fmt: skip
"""What of the request engines are given; the rest of theirs is written for each leg."""

UNAVAILABLE: Final[Mapping[str, str]] = {
    "stop": "the engines behind this endpoint have no tokenizer to find strings with; use stop_token_ids",
    "prompt_logprob_token_ids": "scores of chosen prompt tokens are not passed on; use prompt_logprobs",
    "prompt_logprob_start": "scores of chosen prompt tokens are not passed on; use prompt_logprobs",
}
"""Sampling params that are refused, and why."""

_GREEDY: Final = 1e-5
"""Engines sample greedily below this temperature."""


class _Body(msgspec.Struct):
    token_ids: list[int]
    sampling_params: SamplingParams
    model: str | None = None
    request_id: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    output_mode: str = "tokens"
    cache_salt: str | None = None
    priority: int = 0
    features: Features | None = None
    content_parts: list[msgspec.Raw] | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, msgspec.Raw] | None = None


_body_decoder = msgspec.json.Decoder(_Body)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_sampling_decoder = msgspec.json.Decoder(dict[str, Any])

_PLACE = re.compile(r" - at `\$\.?(.*)`$")


@dataclass(frozen=True, slots=True)
class TokenRequest:
    prompt: RenderedPrompt
    """``max_tokens`` may be missing still, see ``filled``."""
    request_id: str | None
    """The client's own."""
    return_token_ids: bool
    mm_placeholders: msgspec.Raw | None
    """JSON, of a request with features."""
    asked: Mapping[str, Any]
    """What a client's key may limit: ``max_tokens`` and ``min_tokens``, where they are given."""

    def filled(self, window: int | None) -> RenderedPrompt:
        """The prompt with ``max_tokens``: without one, what is left of a context of ``window`` tokens, as
        engines do. Raises ``BadRequest``."""
        if "max_tokens" in self.asked:
            return self.prompt
        if window is None:
            raise BadRequest(
                "max_tokens is needed: the context length of the engines behind this endpoint is not known",
                param="max_tokens",
            )
        # A prompt that leaves no room is refused by whoever compares it with the window.
        room = max(1, window - len(self.prompt.token_ids))
        return replace(self.prompt, sampling={**self.prompt.sampling, "max_tokens": room})


def read_token_request(body: bytes) -> TokenRequest:
    """Raises ``BadRequest``."""
    try:
        head = _body_decoder.decode(body)
        fields = _fields_decoder.decode(body)
        sampling = _sampling_decoder.decode(fields["sampling_params"])
    except UNREADABLE as error:
        raise _misshapen(str(error)) from error
    if not head.token_ids:
        raise BadRequest("token_ids must not be empty", param="token_ids")
    if min(head.token_ids) < 0:
        raise BadRequest("token_ids must not contain negative values", param="token_ids")
    if head.output_mode != "tokens":
        raise BadRequest("output_mode must be 'tokens': this endpoint has no text", param="output_mode")
    if head.content_parts:
        raise BadRequest(
            "content_parts are not read here, as engines fetch what they name: send the features that render"
            " gives, or the chat itself",
            param="content_parts",
        )
    try:
        media = read_media(head.features, len(head.token_ids))
        if head.features is not None:
            check_client_features(head.features)
    except FeaturesError as error:
        raise BadRequest(str(error), param="features") from error
    _check_sampling(head.sampling_params, sampling)
    options = head.stream_options or StreamOptions()
    prompt = RenderedPrompt(
        fields={name: fields[name] for name in FIELDS if name in fields},
        token_ids=head.token_ids,
        sampling=sampling,
        stream=bool(head.stream),
        include_usage=options.include_usage,
        continuous_usage=options.continuous_usage_stats,
        media=media,
        lacks_data=lacks_data(head.features),
    )
    return TokenRequest(
        prompt,
        head.request_id,
        bool(head.return_token_ids),
        None if head.features is None else _fields_decoder.decode(fields["features"])["mm_placeholders"],
        {name: sampling[name] for name in ("max_tokens", "min_tokens") if sampling.get(name) is not None},
    )


def _check_sampling(params: SamplingParams, given: Mapping[str, Any]) -> None:
    for name, why in UNAVAILABLE.items():
        if given.get(name) not in (None, [], ""):
            raise BadRequest(f"{name} is not supported: {why}", param=name)
    if params.n < 1:
        raise BadRequest(f"n must be at least 1, got {params.n}.", param="n")
    if params.n > 1 and params.temperature < _GREEDY:
        raise BadRequest(f"n must be 1 when using greedy sampling, got {params.n}.", param="n")
    most = params.max_tokens
    if most is not None and most < 1:
        raise BadRequest(f"max_tokens must be at least 1, got {most}.", param="max_tokens")
    if params.min_tokens < 0:
        raise BadRequest(f"min_tokens must be at least 0, got {params.min_tokens}.", param="min_tokens")
    if most is not None and params.min_tokens > most:
        raise BadRequest(
            f"min_tokens must be less than or equal to max_tokens={most}, got {params.min_tokens}.",
            param="min_tokens",
        )


def _misshapen(problem: str) -> BadRequest:
    """msgspec says where it is: ``… - at `$.sampling_params.n```."""
    place = _PLACE.search(problem)
    where = f"body.{place.group(1)}" if place is not None and place.group(1) else "body"
    return BadRequest(f"{where}: {problem[: place.start()] if place else problem}", param=where, type=_SHAPE)


_SHAPE: Final = "Bad Request"
