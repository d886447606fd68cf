"""The renderer of a worker: its parts, put together once, and which of them answer a kind of request.

Everything is synchronous and thread-safe; the server decides which thread pays for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from render_tier.core.formats import reasoning_format, tool_format
from render_tier.model import ModelAssets
from render_tier.model.engines import EngineSlot, FastEngine
from render_tier.protocol.anthropic import CountTokensRequest, MessagesRequest
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.generate import GenerateRequest
from render_tier.protocol.request_fields import SamplingFields
from render_tier.protocol.responses_request import ResponsesRequest
from render_tier.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeChatRequest,
    TokenizeResponse,
    TokenizeTextRequest,
)
from render_tier.rendering.as_chats import AsChats
from render_tier.rendering.chat_prompts import ChatPrompts
from render_tier.rendering.chat_renderer import ChatRenderer
from render_tier.rendering.completion_renderer import CompletionRenderer
from render_tier.rendering.continuation_prompts import ContinuedPrompts
from render_tier.rendering.encoder import PromptEncoder
from render_tier.rendering.explain import Explanation
from render_tier.rendering.explained_chats import ExplainedChats
from render_tier.rendering.guarded_chat import guarded_encoder
from render_tier.rendering.guarded_encoder import GuardedEncoder
from render_tier.rendering.native_chat import Parsers
from render_tier.rendering.output_rules import AnswerRules
from render_tier.rendering.prompt_cache import PromptCache, cut_marks
from render_tier.rendering.rendered import Rendered
from render_tier.rendering.request_checks import check_model, refuse_beam_search, refuse_previous_response
from render_tier.rendering.request_media import RequestMedia
from render_tier.rendering.requested_images import RequestedImages
from render_tier.rendering.sampling import SamplingBuilder, SamplingDefaults
from render_tier.rendering.settings import RenderSettings
from render_tier.rendering.tokenization import Tokenization

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.multimodal.families import Replacement
    from render_tier.multimodal.vision import PromptImage, Vision

ID_BYTES: Final = 8
"""Of a request that has no id of its own; random."""


class Renderer:
    """One per worker. Keeps compiled templates, and token IDs of earlier prompts (`PromptCache`)."""

    def __init__(
        self,
        assets: ModelAssets,
        settings: RenderSettings,
        *,
        engine: EngineSlot | None = None,
        vision: Vision | None = None,
    ) -> None:
        """``engine`` may change while requests are served; by default it is the tokenizer itself. ``vision``:
        for a model that takes images.

        Raises UnknownFormat for a parser name without a table, BadRequest for a template that does not
        compile, and ModelLoadError for a model whose special tokens cannot be kept apart."""
        self._assets = assets
        self._settings = settings
        parsers = Parsers(
            reasoning_format(settings.reasoning_parser) if settings.reasoning_parser else None,
            tool_format(settings.tool_parser) if settings.tool_parser else None,
            settings.tool_strict_level,
        )
        self.engine = engine or EngineSlot(assets.tokenizer)
        marks = cut_marks(assets.tokenizer_json, (assets.chat_template, assets.tool_chat_template))
        self.prompt_cache = (
            PromptCache(self.engine, marks, settings.prompt_cache_bytes)
            if marks and settings.prompt_cache_bytes and not settings.escape_user_specials
            else None
        )
        """None when it is switched off or would not be exact for this tokenizer."""
        encoder = PromptEncoder(
            assets.tokenizer,
            vocab_size=assets.vocab_size,
            max_model_len=assets.max_model_len,
            max_chars_per_token=assets.max_chars_per_token,
            engine=self.engine,
            cache=self.prompt_cache,
        )
        self._sampling = SamplingBuilder(
            SamplingDefaults(
                generation_config=assets.generation_config,
                max_tokens_cap=assets.max_tokens_cap,
                eos_token_ids=assets.eos_token_ids,
                vocab_size=assets.vocab_size,
                max_model_len=assets.max_model_len,
                max_logprobs=settings.max_logprobs,
                max_choices=settings.max_choices,
            )
        )
        guarded: GuardedEncoder | None = None
        if settings.escape_user_specials:
            guarded, self.prompt_cache = guarded_encoder(assets, self.engine, settings.prompt_cache_bytes)
        self._takes_images = vision is not None
        self._media = RequestMedia(vision, encoder, trusts_options=settings.trust_request_mm_kwargs)
        marks_of_media = self._media.marks(literal_is_text=guarded is not None)
        self._prompts = ChatPrompts(assets, settings, parsers, encoder, self.engine, guarded, marks_of_media)
        self._native = self._prompts.native
        continued = ContinuedPrompts(
            encoder,
            assets.vocabulary,
            self.engine,
            reasoning=parsers.reasoning,
            max_renders=settings.continuation_renders,
        )
        self._rules = AnswerRules(parsers, assets.vocabulary, self._native)
        self._chats = ChatRenderer(
            self._prompts,
            self._media,
            continued,
            self._rules,
            self._sampling,
            tells_parser_kwargs=parsers.reasoning is not None,
        )
        self._completions = CompletionRenderer(encoder, self._sampling)
        self._as_chats = AsChats(assets, self._native)
        self._explained = ExplainedChats(assets, settings, parsers, self._prompts, self.engine)
        self._tokenization = Tokenization(assets, self._prompts, self._media, encoder)

    @property
    def is_fast(self) -> bool:
        """Whether prompts take few microseconds a kilobyte: written by a template, and encoded by the fast
        engine alone."""
        slow = self._native is not None or self._settings.escape_user_specials
        return not slow and self.engine.name == FastEngine.name

    @property
    def writes_chats(self) -> bool:
        """Whether there is anything that turns messages into a prompt."""
        return self._native is not None or self._assets.chat_template is not None

    def requested_images(
        self, request: ChatCompletionRequest | TokenizeChatRequest | CountTokensRequest | ResponsesRequest
    ) -> RequestedImages | None:
        """The images that a request needs to be rendered with, if there are any; none for a text model, which
        refuses them itself. They are named by their places in the chat that a request of another kind
        becomes. Raises ApiError."""
        if not self._takes_images:
            return None
        chat: ChatCompletionRequest | TokenizeChatRequest
        if isinstance(request, CountTokensRequest):
            chat = self._as_chats.messages(request)
        elif isinstance(request, ResponsesRequest):
            chat = self._as_chats.responses(request)
        else:
            chat = request
        parts = self._media.parts(chat)
        if not parts:
            return None
        self._check_model(chat.model)
        return self._media.requested(chat, parts)

    def chat(self, request: ChatCompletionRequest, *, request_id: str | None = None) -> GenerateRequest:
        """As `render_chat`. Raises ApiError."""
        return self.render_chat(request, request_id=request_id).generate_request()

    def render_chat(
        self,
        request: ChatCompletionRequest,
        *,
        request_id: str | None = None,
        images: Sequence[PromptImage] = (),
    ) -> Rendered:
        """``request_id`` (the ``X-Request-Id`` header) wins over the body's. ``images``: those of
        `requested_images`. Raises ApiError."""
        self._check_model(request.model)
        refuse_beam_search(request)
        self._rules.check_tool_choice(request)
        asked_field = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        return self._chats.render(request, f"chatcmpl-{self._id(request, request_id)}", asked_field, images)

    def explain_chat(
        self,
        request: ChatCompletionRequest,
        *,
        request_id: str | None = None,
        images: Sequence[PromptImage] = (),
    ) -> Explanation:
        """What `render_chat` gives, and why. Costs several times as much. Raises ApiError."""
        render = partial(self.render_chat, request_id=request_id, images=images)
        return self._explained.explain(request, render)

    def render_responses(self, request: ResponsesRequest, *, images: Sequence[PromptImage] = ()) -> Rendered:
        """Raises ApiError."""
        self._check_model(request.model)
        refuse_previous_response(request)
        self._sampling.check_asked(request.max_output_tokens, "max_output_tokens")
        chat = self._as_chats.responses(request)
        name = request.request_id or f"resp_{secrets.token_hex(ID_BYTES)}"
        rendered = self._chats.render(chat, name, "max_output_tokens", images)
        generate = rendered.request
        generate.reasoning_ended = None
        generate.kv_transfer_params = chat.kv_transfer_params
        generate.ec_transfer_params = chat.ec_transfer_params
        return rendered

    def render_messages(
        self,
        request: MessagesRequest,
        *,
        request_id: str | None = None,
        images: Sequence[PromptImage] = (),
    ) -> Rendered:
        """Raises ApiError."""
        return self.render_chat(self._as_chats.messages(request), request_id=request_id, images=images)

    def count_tokens(self, request: CountTokensRequest, *, places: Sequence[Replacement] = ()) -> int:
        """Of the prompt that the request renders to. ``places``: of the images of `requested_images`.
        Raises ApiError."""
        chat = self._as_chats.messages(request)
        self._media.check_given(chat, places)
        self._check_model(chat.model)
        self._rules.check_tool_choice(chat)
        return self._tokenization.count(chat, places)

    def completions(
        self, request: CompletionRequest, *, request_id: str | None = None
    ) -> list[GenerateRequest]:
        """One for each prompt. Raises ApiError."""
        self._check_model(request.model)
        refuse_beam_search(request)
        return self._completions.render(request, f"cmpl-{self._id(request, request_id)}")

    def tokenize(
        self, request: TokenizeTextRequest | TokenizeChatRequest, *, places: Sequence[Replacement] = ()
    ) -> TokenizeResponse:
        """``places``: of the images of `requested_images`. Raises ApiError."""
        self._check_model(request.model)
        return self._tokenization.tokenize(request, places)

    def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        """IDs that the tokenizer does not have spell nothing. Raises ApiError."""
        self._check_model(request.model)
        return self._tokenization.detokenize(request)

    def _check_model(self, model: str | None) -> None:
        check_model(model, self._assets.served_names)

    def _id(self, request: SamplingFields, header: str | None) -> str:
        return header or request.request_id or secrets.token_hex(ID_BYTES)
