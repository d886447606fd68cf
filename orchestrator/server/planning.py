"""What is decided of a request once render has answered: whether engines can serve it, and by which way."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.legs import RenderedPrompt, out_of_vocabulary, unsupported_feature
from orchestrator.server.run import Run
from orchestrator.server.services import Services
from render_tier.protocol.errors import BadRequest, PayloadTooLarge, Unavailable


def require_servable(services: Services, prompts: Sequence[RenderedPrompt]) -> None:
    """Raises ``BadRequest`` for what no engine may see, or some engine would refuse."""
    count, most = sum(prompt.choices for prompt in prompts), services.settings.limits.runs_per_request
    if count > most:
        raise BadRequest(f"prompts times n is {count}, which exceeds the limit of {most}", param="n")
    for prompt in prompts:
        feature = unsupported_feature(prompt.sampling, services.deployment.engine_capabilities)
        if feature is not None:
            raise BadRequest(
                f"this request needs {feature}, which the token-only engines behind this endpoint cannot"
                " do. response_format, forced or strict tool choice, parallel_tool_calls=false, bad_words"
                " and thinking budgets need engines declared in policy.engine_capabilities.",
                param=feature,
            )
        if prompt.lacks_data:
            # vLLM takes them from its cache, if they are in it; which one has what is not known here.
            raise BadRequest(
                "engines need the data of every image: leave out mm_payload, and send features with their"
                " kwargs_data",
                param="features",
            )
        _require_room(services, prompt)


def require_memory(services: Services, features_bytes: int) -> None:
    """Raises ``ApiError`` where so many bytes of images do not fit beside those of the requests under way."""
    most = services.settings.limits.features_bytes
    if features_bytes > most:
        raise PayloadTooLarge(f"the images take {features_bytes} bytes, which exceeds the limit of {most}")
    if services.integrity.features_bytes + features_bytes > most:
        raise Unavailable("too many images are under way")


def _require_room(services: Services, prompt: RenderedPrompt) -> None:
    limits = services.deployment.engine_limits
    if limits.vocab_size is not None:
        alien = out_of_vocabulary(prompt.token_ids, limits.vocab_size)
        if alien is not None:
            raise BadRequest(f"token id {alien} is outside the vocabulary (0 to {limits.vocab_size - 1})")
    window, count = limits.max_model_len, len(prompt.token_ids)
    if window is not None and count >= window:
        raise BadRequest(
            f"The engines' maximum context length is {window} tokens. However, your prompt contains"
            f" {count} input tokens, which leaves no room for output. Please reduce the length of the"
            " input prompt.",
            param="input_tokens",
        )


def goes_to_encoders(services: Services, run: Run) -> bool:
    """Not where a decode engine computes the prompt although there are prefill engines, which encoders work
    for; nor pictures, which no encoder can be given the places of."""
    computes = run.through_prefill or not services.deployment.disaggregated
    prompt = run.whole_prompt
    return computes and services.deployment.encodes and bool(prompt.media) and prompt.pictures is None


def goes_through_prefill(services: Services, run: Run) -> bool:
    """Or decode prefills by itself. Notes in ``run`` when that is because decode has most of the prompt."""
    settings, prompt = services.settings, run.whole_prompt
    if not services.deployment.disaggregated:
        return False
    if settings.policy.skip_prefill_for_one_token and prompt.max_tokens == 1:
        return False
    if settings.policy.skip_prefill_below_uncached_tokens:
        blocks = services.decode_pool.would_find_cached(run.members.affinity)
        cached = blocks * settings.selection.prefix_block_tokens
        if cached and len(prompt.token_ids) - cached < settings.policy.skip_prefill_below_uncached_tokens:
            run.decodes_where_cached = True
            return False
    return len(prompt.token_ids) >= settings.policy.skip_prefill_below_tokens
