"""A chat's rendering with its reasons: rendered with offsets, and read beside its request and template."""

from __future__ import annotations

from collections.abc import Callable

from render_tier.model import ModelAssets
from render_tier.model.engines import EngineSlot
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.rendering.chat_prompts import ChatPrompts
from render_tier.rendering.explain import Explainer, Explanation
from render_tier.rendering.native_chat import Parsers
from render_tier.rendering.rendered import Rendered
from render_tier.rendering.settings import RenderSettings


class ExplainedChats:
    """Thread-safe; keeps nothing between requests."""

    def __init__(
        self,
        assets: ModelAssets,
        settings: RenderSettings,
        parsers: Parsers,
        prompts: ChatPrompts,
        engine: EngineSlot,
    ) -> None:
        self._assets = assets
        self._settings = settings
        self._parsers = parsers
        self._prompts = prompts
        self._engine = engine

    def explain(
        self, request: ChatCompletionRequest, render: Callable[[ChatCompletionRequest], Rendered]
    ) -> Explanation:
        """What ``render`` gives, and why. Raises ApiError."""
        asked = request.model_copy(update={"return_token_offsets": True})
        reused = (request.kv_transfer_params or {}).get("prompt_token_ids") is not None
        rendered = render(asked)
        generate = rendered.generate_request()
        explainer = Explainer(self._assets, self._settings, self._parsers.reasoning)
        text, facts = None, None
        if not reused and self._prompts.native is None:
            kwargs = self._prompts.template_kwargs(request)
            text = self._prompts.plain_text(request, kwargs)
            facts = self._prompts.facts(request, kwargs, explainer)
        tokens = explainer.tokens(rendered.ids.to_list(), generate.token_offsets)
        if not request.return_token_offsets:
            generate.token_offsets = None
        return Explanation(
            request=generate,
            prompt=text,
            prompt_tokens=len(tokens),
            tokens=tokens,
            template=facts,
            parameters=explainer.parameters(request, generate),
            tokenizer_engine=self._engine.name,
            fingerprint=self._assets.fingerprint,
        )
