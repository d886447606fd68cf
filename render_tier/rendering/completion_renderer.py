"""A completion request to its GenerateRequests, one for each prompt."""

from __future__ import annotations

from render_tier.protocol.completions import CompletionRequest, Prompt
from render_tier.protocol.generate import GenerateRequest
from render_tier.rendering.chat_prompts import encode_options
from render_tier.rendering.constraints import requested_constraint
from render_tier.rendering.encoder import EncodedPrompt, PromptEncoder
from render_tier.rendering.generate_requests import generate_request
from render_tier.rendering.rendered import Rendered
from render_tier.rendering.request_checks import refuse_suffix
from render_tier.rendering.sampling import SamplingBuilder


class CompletionRenderer:
    """Thread-safe; keeps nothing between requests."""

    def __init__(self, encoder: PromptEncoder, sampling: SamplingBuilder) -> None:
        self._encoder = encoder
        self._sampling = sampling

    def render(self, request: CompletionRequest, name: str) -> list[GenerateRequest]:
        """``name``: of the request; its prompts' are numbered where there are several. Raises ApiError."""
        if request.suffix is not None:
            refuse_suffix(request)
        self._sampling.check_asked(request.max_tokens, "max_tokens")
        constraint = requested_constraint(request)
        echo_only = request.echo and request.max_tokens == 0
        generated = []
        for index, prompt in enumerate(request.prompts):
            encoded = self._encoded(prompt, request)
            params = self._sampling.build(
                request,
                max_tokens=1
                if echo_only
                else self._sampling.max_tokens(request.max_tokens, len(encoded.ids)),
                skip_special_tokens=request.skip_special_tokens,
                constraint=constraint,
            )
            own_name = name if len(request.prompts) == 1 else f"{name}-{index}"
            rendered = Rendered(generate_request(request, own_name, encoded, params), encoded.ids)
            generated.append(rendered.generate_request())
        return generated

    def _encoded(self, prompt: Prompt, request: CompletionRequest) -> EncodedPrompt:
        options = encode_options(
            request, add_special_tokens=request.add_special_tokens, reserve_output=bool(request.max_tokens)
        )
        if isinstance(prompt, str):
            return self._encoder.text(prompt, options)
        return self._encoder.token_ids(prompt, options)
