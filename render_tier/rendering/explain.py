"""Why a request renders as it does: the text with its token boundaries, and where each value comes from.

Nothing here decides anything. It reads the request, the settings and the finished GenerateRequest side by
side and names the source of what it finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from render_tier.core.table import ReasoningFormat
from render_tier.model import ModelAssets
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.generate import GenerateRequest
from render_tier.rendering.sampling import GREEDY_BELOW, LOWEST_TEMPERATURE, OPENAI_DEFAULTS
from render_tier.rendering.settings import RenderSettings


class TokenSpan(msgspec.Struct, omit_defaults=True):
    """One prompt token. ``start`` and ``end``: characters of the prompt text; tokens that share a character
    (parts of one emoji) have the same. They are left out where the tokenizer cannot tell."""

    id: int
    text: str
    special: bool = False
    start: int | None = None
    end: int | None = None


class Origin(msgspec.Struct):
    """A value that the request did not spell out in just this form, and where it comes from."""

    name: str
    value: Any
    source: str
    """"request", "generation config", "server", "model" or "default"."""
    why: str


class TemplateFacts(msgspec.Struct):
    source: str
    content_format: str
    content_format_why: str
    variables: list[Origin]
    """What the template was given beside messages and tools."""
    ignored: list[str]
    """Arguments that the template does not read."""
    special_tokens: dict[str, Any]
    developer_role: str


class Explanation(msgspec.Struct):
    request: GenerateRequest
    """What the plain endpoint answers."""
    prompt: str | None
    """The templated text; null where no template wrote the prompt."""
    prompt_tokens: int
    tokens: list[TokenSpan]
    template: TemplateFacts | None
    parameters: list[Origin]
    tokenizer_engine: str
    fingerprint: str


class Explainer:
    def __init__(
        self,
        assets: ModelAssets,
        settings: RenderSettings,
        reasoning: ReasoningFormat | None,
    ) -> None:
        self._assets = assets
        self._settings = settings
        self._reasoning = reasoning

    def tokens(self, ids: list[int], offsets: list[tuple[int, int]] | None) -> list[TokenSpan]:
        vocabulary = self._assets.vocabulary
        special = vocabulary.special_ids
        spans: list[tuple[int | None, int | None]] = [(None, None)] * len(ids)
        if offsets is not None:
            spans = [(start, end) for start, end in offsets]
        return [
            TokenSpan(token_id, vocabulary.text([token_id]), token_id in special, start, end)
            for token_id, (start, end) in zip(ids, spans, strict=True)
        ]

    def variables(self, request: ChatCompletionRequest, given: Mapping[str, Any]) -> list[Origin]:
        """``given``: the merged template arguments."""
        own = request.chat_template_kwargs or {}
        server = self._settings.default_chat_template_kwargs
        found = []
        for name, value in given.items():
            if name in ChatCompletionRequest.model_fields and getattr(request, name) == value:
                stated = name in request.model_fields_set
                origin = ("request", f"the request's `{name}`") if stated else ("default", "OpenAI's default")
            elif own.get(name) is not None:
                origin = ("request", "chat_template_kwargs")
            elif name == "enable_thinking" and request.reasoning_effort is not None:
                origin = ("request", f"reasoning_effort is {request.reasoning_effort!r}")
            elif name in server:
                origin = ("server", "--default-chat-template-kwargs")
            else:
                origin = ("default", "the renderer's own")
            found.append(Origin(name, value, *origin))
        return found

    def parameters(self, request: ChatCompletionRequest, generate: GenerateRequest) -> list[Origin]:
        return [
            *self._sampling(request, generate),
            self._max_tokens(request, generate),
            *self._stops(request, generate),
            *self._output(request, generate),
        ]

    def _sampling(self, request: ChatCompletionRequest, generate: GenerateRequest) -> Iterator[Origin]:
        configured = self._assets.generation_config
        greedy = generate.sampling_params.temperature < GREEDY_BELOW
        for name in OPENAI_DEFAULTS:
            value, asked = getattr(generate.sampling_params, name), getattr(request, name)
            if greedy and name in ("top_p", "top_k", "min_p"):
                yield Origin(name, value, "server", "temperature is 0: the likeliest token is taken")
            elif name == "temperature" and value == LOWEST_TEMPERATURE and asked != value:
                yield Origin(name, value, "server", f"smaller temperatures than {value} overflow in engines")
            elif asked is not None:
                yield Origin(name, value, "request", f"the request's `{name}`")
            elif name in configured:
                yield Origin(name, value, "generation config", "--generation-config and its overrides")
            else:
                yield Origin(name, value, "default", "OpenAI's default")

    def _max_tokens(self, request: ChatCompletionRequest, generate: GenerateRequest) -> Origin:
        assets, value = self._assets, generate.sampling_params.max_tokens
        asked = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        if value == asked:
            return Origin("max_tokens", value, "request", "as asked")
        if value == assets.max_tokens_cap:
            return Origin("max_tokens", value, "server", "the operator's max_new_tokens: none may exceed it")
        if asked is None and value == assets.generation_config.get("max_new_tokens"):
            return Origin("max_tokens", value, "generation config", "max_new_tokens")
        left = f"what the prompt leaves of {assets.max_model_len} positions"
        return Origin("max_tokens", value, "model", left)

    def _stops(self, request: ChatCompletionRequest, generate: GenerateRequest) -> Iterator[Origin]:
        params = generate.sampling_params
        if request.ignore_eos:
            yield Origin("stop_token_ids", params.stop_token_ids, "request", "ignore_eos: no EOS is added")
        elif params.stop_token_ids != (request.stop_token_ids or None):
            why = "the model's EOS IDs are added: an engine without a tokenizer knows no others"
            yield Origin("stop_token_ids", params.stop_token_ids, "model", why)

    def _output(self, request: ChatCompletionRequest, generate: GenerateRequest) -> Iterator[Origin]:
        params = generate.sampling_params
        if not params.skip_special_tokens and request.skip_special_tokens:
            why = "a parser reads the special tokens of the answer"
            yield Origin("skip_special_tokens", False, "server", why)
        if params.structured_outputs is not None:
            if request.structured_outputs is None and request.response_format is None:
                why = f"tool_choice {_choice(request)} in the format of {self._settings.tool_parser}"
            else:
                why = "structured_outputs, response_format and tool_choice together"
            yield Origin("structured_outputs", params.structured_outputs, "request", why)
        if generate.reasoning_ended is None:
            why, source = "there is no reasoning parser", "server"
        elif not request.include_reasoning:
            why, source = "include_reasoning is false", "request"
        else:
            why, source = (
                "the prompt's end, else the template's switches, else the parser's start",
                "model",
            )
        yield Origin("reasoning_ended", generate.reasoning_ended, source, why)


def _choice(request: ChatCompletionRequest) -> str:
    named = request.forced_function
    return repr(request.tool_choice) if named is None else f"of {named!r}"
