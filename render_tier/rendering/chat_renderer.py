"""A chat to its GenerateRequest: prompt, images, continuation, rules and parameters, in vLLM's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.generate import ContinuationReport
from render_tier.rendering.chat_prompts import ChatPrompts, encode_options
from render_tier.rendering.continuation_prompts import ContinuedPrompts
from render_tier.rendering.encoder import EncodedPrompt
from render_tier.rendering.generate_requests import generate_request
from render_tier.rendering.output_rules import AnswerRules
from render_tier.rendering.rendered import Rendered
from render_tier.rendering.request_media import RequestMedia
from render_tier.rendering.sampling import SamplingBuilder

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.multimodal.vision import PromptImage


class ChatRenderer:
    """Thread-safe; what is kept between requests its parts keep."""

    def __init__(
        self,
        prompts: ChatPrompts,
        media: RequestMedia,
        continued: ContinuedPrompts,
        rules: AnswerRules,
        sampling: SamplingBuilder,
        *,
        tells_parser_kwargs: bool,
    ) -> None:
        """``tells_parser_kwargs``: whether engines are told the template's arguments, for their reasoning
        parser."""
        self._prompts = prompts
        self._media = media
        self._continued = continued
        self._rules = rules
        self._sampling = sampling
        self._tells_parser_kwargs = tells_parser_kwargs

    def render(
        self, request: ChatCompletionRequest, name: str, asked_field: str, images: Sequence[PromptImage]
    ) -> Rendered:
        """``name``: the generate request's id. ``asked_field``: what the client calls the output limit.
        Raises ApiError."""
        self._prompts.check_fields(request)
        self._media.check_options(request)
        self._media.check_given(request, images)
        self._continued.check(request)
        asked = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        native = self._prompts.native
        if native is None or native.cuts_to_fit:
            self._sampling.check_asked(asked, asked_field)
        kwargs = self._prompts.template_kwargs(request)
        warnings: list[str] = []
        prompt = self._prompts.reused(request)
        if prompt is None:
            prompt, warnings = self._prompts.prompt(request, kwargs, reserve_output=bool(asked))
        options = encode_options(request, reserve_output=bool(asked))
        prompt, ranges = self._media.placed(prompt, images, options)
        warnings = [*warnings, *self._media.ignored(request, images)]
        report: ContinuationReport | UnsetType = UNSET
        if request.continuation is not None:

            def render_other(other: ChatCompletionRequest) -> EncodedPrompt:
                text = self._prompts.prompt(other, kwargs, reserve_output=bool(asked))[0]
                return self._media.placed(text, images, options)[0]

            whole = prompt
            prompt, report = self._continued.prompt(request, request.continuation, whole, render_other)
            ranges = self._media.moved(ranges, whole, prompt)
        media = self._media.given(request, images, ranges, prompt)
        rules = self._rules.rules(request, kwargs, prompt.ids)
        params = self._sampling.build(
            request,
            max_tokens=self._sampling.max_tokens(asked, len(prompt.ids)),
            skip_special_tokens=request.skip_special_tokens and not rules.keeps_special_tokens,
            constraint=rules.constraint,
        )
        generate = generate_request(request, name, prompt, params)
        generate.reasoning_ended = rules.reasoning_ended
        if self._tells_parser_kwargs:
            generate.reasoning_parser_kwargs = {"chat_template_kwargs": kwargs}
        generate.continuation = report
        if warnings:
            generate.warnings = warnings
        return Rendered(generate, prompt.ids, media)
