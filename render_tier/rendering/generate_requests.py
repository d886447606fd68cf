"""What every GenerateRequest takes over from the client's request."""

from __future__ import annotations

from render_tier.protocol.generate import GenerateRequest, SamplingParams, StreamOptions
from render_tier.protocol.request_fields import SamplingFields
from render_tier.rendering.encoder import EncodedPrompt


def generate_request(
    request: SamplingFields, request_id: str, prompt: EncodedPrompt, params: SamplingParams
) -> GenerateRequest:
    """Without the prompt's token IDs, which `Rendered` holds."""
    options = request.stream_options if request.stream else None
    return GenerateRequest(
        request_id=request_id,
        token_ids=[],
        token_offsets=prompt.offsets,
        sampling_params=params,
        model=request.model,
        stream=bool(request.stream),
        stream_options=None
        if options is None
        else StreamOptions(
            include_usage=bool(options.include_usage),
            continuous_usage_stats=bool(options.continuous_usage_stats),
        ),
        cache_salt=request.cache_salt,
        priority=request.priority,
    )
