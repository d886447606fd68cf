"""Requests to GenerateRequests: checks, template, tokens and parameters, in the order of vLLM's render.

Everything is synchronous and thread-safe; the server decides which thread pays for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from render_tier.core.formats import reasoning_format, starts_with_reasoning, tool_format
from render_tier.model import ModelAssets
from render_tier.model.engines import EngineSlot, FastEngine
from render_tier.protocol import responses_as_chat
from render_tier.protocol.anthropic import CountTokensRequest, MessagesRequest
from render_tier.protocol.anthropic_as_chat import as_chat
from render_tier.protocol.chat import ChatCompletionRequest, ChatTemplateFields
from render_tier.protocol.completions import CompletionRequest, Prompt
from render_tier.protocol.errors import BadRequest, NotFound
from render_tier.protocol.generate import ContinuationReport, GenerateRequest, StreamOptions
from render_tier.protocol.request_fields import SamplingFields
from render_tier.protocol.responses_request import ResponsesRequest
from render_tier.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeChatRequest,
    TokenizeResponse,
    TokenizeTextRequest,
)
from render_tier.protocol.validation import invalid
from render_tier.rendering.chat_prompts import ChatPrompts, encode_options
from render_tier.rendering.constraints import requested_constraint, with_tool_choice
from render_tier.rendering.continuation_prompts import ContinuedPrompts
from render_tier.rendering.encoder import EncodedPrompt, PromptEncoder
from render_tier.rendering.explain import Explainer, Explanation
from render_tier.rendering.guarded_chat import guarded_encoder
from render_tier.rendering.guarded_encoder import GuardedEncoder
from render_tier.rendering.image_parts import Kind, Mark, MediaMarks, ignored_details, image_parts
from render_tier.rendering.native_chat import OutputRules, Parsers
from render_tier.rendering.prompt_cache import PromptCache, cut_marks
from render_tier.rendering.rendered import Rendered
from render_tier.rendering.request_checks import (
    check_media_options,
    refuse_beam_search,
    refuse_options_of_videos,
    refuse_suffix,
)
from render_tier.rendering.requested_images import RequestedImages
from render_tier.rendering.sampling import SamplingBuilder, SamplingDefaults
from render_tier.rendering.settings import RenderSettings
from render_tier.rendering.system_order import refuses_inline_system
from render_tier.rendering.token_ids import PromptIds

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.multimodal.families import Replacement
    from render_tier.multimodal.features import Features
    from render_tier.multimodal.placeholders import Range
    from render_tier.multimodal.vision import PromptImage, Vision


class Renderer:
    """One per worker. Keeps compiled templates, and token IDs of earlier prompts (`PromptCache`)."""

    def __init__(
        self,
        assets: ModelAssets,
        settings: RenderSettings,
        *,
        engine: EngineSlot | None = None,
        vision: Vision | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """``engine`` may change while requests are served; by default it is the tokenizer itself. ``vision``:
        for a model that takes images.

        Raises UnknownFormat for a parser name without a table, BadRequest for a template that does not
        compile, and ModelLoadError for a model whose special tokens cannot be kept apart."""
        self._assets = assets
        self._settings = settings
        self._new_id = new_id
        self._reasoning = reasoning_format(settings.reasoning_parser) if settings.reasoning_parser else None
        self._tools = tool_format(settings.tool_parser) if settings.tool_parser else None
        self.engine = engine or EngineSlot(assets.tokenizer)
        marks = cut_marks(assets.tokenizer_json, (assets.chat_template, assets.tool_chat_template))
        self.prompt_cache = (
            PromptCache(self.engine, marks, settings.prompt_cache_bytes)
            if marks and settings.prompt_cache_bytes and not settings.escape_user_specials
            else None
        )
        """None when it is switched off or would not be exact for this tokenizer."""
        self._encoder = PromptEncoder(
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
        self._vision = vision
        self._media_kinds: tuple[Kind, ...] = () if vision is None else tuple(vision.marks)
        self._prompts = ChatPrompts(
            assets,
            settings,
            Parsers(self._reasoning, self._tools, settings.tool_strict_level),
            self._encoder,
            self.engine,
            guarded,
            None
            if vision is None
            else MediaMarks(
                {kind: Mark(*shown) for kind, shown in vision.marks.items()},
                literal_is_text=guarded is not None,
            ),
        )
        self._native = self._prompts.native
        self._continued = ContinuedPrompts(
            self._encoder,
            assets.vocabulary,
            self.engine,
            reasoning=self._reasoning,
            max_renders=settings.continuation_renders,
        )
        self._merges_inline_system = refuses_inline_system((assets.chat_template, assets.tool_chat_template))

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
        if self._vision is None:
            return None
        chat: ChatCompletionRequest | TokenizeChatRequest
        if isinstance(request, CountTokensRequest):
            chat = self._messages_chat(request)
        elif isinstance(request, ResponsesRequest):
            chat = self._responses_chat(request)
        else:
            chat = request
        parts = image_parts(chat.messages, self._media_kinds)
        if not parts:
            return None
        self.check_model(chat.model)
        check_media_options(chat, trusted=self._settings.trust_request_mm_kwargs)
        if any(part.kind == "video" for part in parts):
            refuse_options_of_videos(chat)
        try:
            preparation = self._vision.prepared_with(chat.mm_processor_kwargs, chat.media_io_kwargs)
            videos = self._vision.videos_with(chat.media_io_kwargs)
        except ValueError as error:
            raise invalid(str(error), getattr(error, "param", None)) from None
        salt = chat.cache_salt if isinstance(chat, ChatCompletionRequest) else None
        check_fits = partial(self._encoder.check_fits, exact=False)
        return RequestedImages(parts, preparation, videos, salt, check_fits)

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
        self.check_model(request.model)
        refuse_beam_search(request)
        self._check_tool_choice(request)
        asked_field = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        return self._render(request, f"chatcmpl-{self._id(request, request_id)}", asked_field, images)

    def explain_chat(
        self,
        request: ChatCompletionRequest,
        *,
        request_id: str | None = None,
        images: Sequence[PromptImage] = (),
    ) -> Explanation:
        """What `render_chat` gives, and why. Costs several times as much. Raises ApiError."""
        asked = request.model_copy(update={"return_token_offsets": True})
        reused = (request.kv_transfer_params or {}).get("prompt_token_ids") is not None
        rendered = self.render_chat(asked, request_id=request_id, images=images)
        generate = rendered.generate_request()
        explainer = Explainer(self._assets, self._settings, self._reasoning, self._tools)
        text, facts = None, None
        if not reused and self._native is None:
            kwargs = self._prompts.template_kwargs(request)
            text = self._prompts.plain_text(request, kwargs)
            facts = self._prompts.facts(request, kwargs, explainer)
        tokens = explainer.tokens(generate.token_ids, generate.token_offsets)
        if not request.return_token_offsets:
            generate.token_offsets = None
        return Explanation(
            request=generate,
            prompt=text,
            prompt_tokens=len(tokens),
            tokens=tokens,
            template=facts,
            parameters=explainer.parameters(request, generate),
            tokenizer_engine=self.engine.name,
            fingerprint=self._assets.fingerprint,
        )

    def render_responses(self, request: ResponsesRequest, *, images: Sequence[PromptImage] = ()) -> Rendered:
        """Raises ApiError."""
        self.check_model(request.model)
        if request.previous_response_id is not None:
            raise BadRequest(
                "previous_response_id is not supported: nothing is stored here. Send the whole history in "
                "`input`.",
                param="previous_response_id",
                type="invalid_request_error",
            )
        self._sampling.check_asked(request.max_output_tokens, "max_output_tokens")
        chat = self._responses_chat(request)
        name = request.request_id or f"resp_{self._new_id()}"
        rendered = self._render(chat, name, "max_output_tokens", images)
        generate = rendered.request
        generate.reasoning_ended = None
        generate.kv_transfer_params = chat.kv_transfer_params
        generate.ec_transfer_params = chat.ec_transfer_params
        return rendered

    def _render(
        self,
        request: ChatCompletionRequest,
        name: str,
        asked_field: str,
        images: Sequence[PromptImage] = (),
    ) -> Rendered:
        """``name``: the generate request's id. ``asked_field``: what the client calls the output limit."""
        self._prompts.check_fields(request)
        check_media_options(request, trusted=self._settings.trust_request_mm_kwargs)
        self._check_images(request, images)
        self._continued.check(request)
        asked = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        if self._native is None or self._native.cuts_to_fit:
            self._sampling.check_asked(asked, asked_field)
        kwargs = self._prompts.template_kwargs(request)
        warnings: list[str] = []
        prompt = self._prompts.reused(request)
        if prompt is None:
            prompt, warnings = self._prompts.prompt(request, kwargs, reserve_output=bool(asked))
        prompt, ranges = self._placed(prompt, images)
        if images:
            warnings = [*warnings, *ignored_details(image_parts(request.messages, self._media_kinds))]
        report: ContinuationReport | UnsetType = UNSET
        if request.continuation is not None:
            whole = prompt
            prompt, report = self._continued.prompt(
                request,
                request.continuation,
                prompt,
                lambda other: self._placed(
                    self._prompts.prompt(other, kwargs, reserve_output=bool(asked))[0], images
                )[0],
            )
            if images and prompt is not whole:
                ranges = self._moved(ranges, whole, prompt)
        features: Features | None = None
        if images:
            assert self._vision is not None
            features = self._vision.features(
                images, ranges, prompt_length=len(prompt.ids), payload=request.mm_payload
            )
        rules = self._output_rules(request, kwargs, prompt.ids)
        params = self._sampling.build(
            request,
            max_tokens=self._sampling.max_tokens(asked, len(prompt.ids)),
            skip_special_tokens=request.skip_special_tokens and not rules.keeps_special_tokens,
            constraint=rules.constraint,
        )
        generate = self._generate_request(request, name, prompt, params)
        generate.reasoning_ended = rules.reasoning_ended
        if self._reasoning is not None:
            generate.reasoning_parser_kwargs = {"chat_template_kwargs": kwargs}
        generate.continuation = report
        if warnings:
            generate.warnings = warnings
        return Rendered(generate, prompt.ids, features)

    def _responses_chat(self, request: ResponsesRequest) -> ChatCompletionRequest:
        joined = self._native is None or self._native.joins_parts
        if not joined and request.previous_input_messages:
            raise BadRequest(
                "previous_input_messages is not supported. Send the history as items of `input`.",
                param="previous_input_messages",
            )
        return responses_as_chat.as_chat(request, joined=joined)

    def render_messages(
        self,
        request: MessagesRequest,
        *,
        request_id: str | None = None,
        images: Sequence[PromptImage] = (),
    ) -> Rendered:
        """Raises ApiError."""
        return self.render_chat(self._messages_chat(request), request_id=request_id, images=images)

    def _messages_chat(self, request: CountTokensRequest) -> ChatCompletionRequest:
        return as_chat(request, merge_inline_system=self._merges_inline_system)

    def count_tokens(self, request: CountTokensRequest, *, places: Sequence[Replacement] = ()) -> int:
        """Of the prompt that the request renders to. ``places``: of the images of `requested_images`.
        Raises ApiError."""
        chat = self._messages_chat(request)
        self._check_images(chat, places)
        self.check_model(chat.model)
        self._check_tool_choice(chat)
        self._prompts.check_fields(chat)
        kwargs = self._prompts.template_kwargs(chat)
        prompt = self._prompts.prompt(chat, kwargs, reserve_output=False)[0]
        if not places:
            return len(prompt.ids)
        count = len(self._expanded(prompt.token_ids, places)[0])
        self._encoder.check_fits(count)
        return count

    def completions(
        self, request: CompletionRequest, *, request_id: str | None = None
    ) -> list[GenerateRequest]:
        """One for each prompt. Raises ApiError."""
        self.check_model(request.model)
        refuse_beam_search(request)
        if request.suffix is not None:
            refuse_suffix(request)
        self._sampling.check_asked(request.max_tokens, "max_tokens")
        constraint = requested_constraint(request)
        base = f"cmpl-{self._id(request, request_id)}"
        generated = []
        for index, prompt in enumerate(request.prompts):
            encoded = self._encoded(prompt, request)
            echo_only = request.echo and request.max_tokens == 0
            params = self._sampling.build(
                request,
                max_tokens=1
                if echo_only
                else self._sampling.max_tokens(request.max_tokens, len(encoded.ids)),
                skip_special_tokens=request.skip_special_tokens,
                constraint=constraint,
            )
            name = base if len(request.prompts) == 1 else f"{base}-{index}"
            rendered = Rendered(self._generate_request(request, name, encoded, params), encoded.ids)
            generated.append(rendered.generate_request())
        return generated

    def tokenize(
        self, request: TokenizeTextRequest | TokenizeChatRequest, *, places: Sequence[Replacement] = ()
    ) -> TokenizeResponse:
        """``places``: of the images of `requested_images`. Raises ApiError."""
        self.check_model(request.model)
        if isinstance(request, TokenizeChatRequest):
            self._prompts.check_trust(request)
            check_media_options(request, trusted=self._settings.trust_request_mm_kwargs)
            self._check_images(request, places)
            ids = self._prompts.ids(request)
            if places:
                ids = self._expanded(ids, places)[0]
        else:
            ids = self._encoder.plain_ids(request.prompt, add_special_tokens=request.add_special_tokens)
        strings = list(map(self._assets.tokenizer.piece, ids)) if request.return_token_strs else None
        return TokenizeResponse(len(ids), self._assets.max_model_len, ids, strings)

    def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        """IDs that the tokenizer does not have spell nothing. Raises ApiError."""
        self.check_model(request.model)
        return DetokenizeResponse(self._assets.vocabulary.text(request.tokens))

    def check_model(self, model: str | None) -> None:
        """Raises NotFound for a name that is not served here."""
        if model and model not in self._assets.served_names:
            aliases = ", ".join(self._assets.served_names)
            raise NotFound(
                f"The model `{model[:200]}` does not exist. Valid aliases: {aliases}.", param="model"
            )

    def _check_images(self, request: ChatTemplateFields, given: Sequence[object]) -> None:
        """Raises BadRequest for images that the caller has not brought."""
        if given or self._vision is None:
            return
        parts = image_parts(request.messages, self._media_kinds)
        if parts:
            raise BadRequest(f"{parts[0].param}: its image is needed", param=parts[0].param)

    def _placed(
        self, prompt: EncodedPrompt, images: Sequence[PromptImage]
    ) -> tuple[EncodedPrompt, Sequence[Range]]:
        """The prompt with the images' tokens in it, and where those are. Raises BadRequest."""
        if not images:
            return prompt, ()
        ids, ranges = self._expanded(prompt.token_ids, [each.image.replacement for each in images])
        self._encoder.check_fits(len(ids))
        return EncodedPrompt(PromptIds.of(ids)), ranges

    def _expanded(
        self, ids: Sequence[int], places: Sequence[Replacement]
    ) -> tuple[list[int], Sequence[Range]]:
        """The prompt with the images' tokens in it, and where those are. Raises BadRequest."""
        assert self._vision is not None
        try:
            return self._vision.expand(ids, places)
        except ValueError as error:
            raise BadRequest(
                f"{error}: a text holds the place of one, the template leaves one out, or it was cut off",
                param="messages",
            ) from None

    def _moved(
        self, ranges: Sequence[Range], whole: EncodedPrompt, continued: EncodedPrompt
    ) -> Sequence[Range]:
        """Where the images of ``whole`` are in what goes on from a client's IDs. Raises BadRequest."""
        assert self._vision is not None
        try:
            return self._vision.moved(ranges, whole.token_ids, continued.token_ids)
        except ValueError as error:
            raise BadRequest(str(error), param="continuation") from None

    def _check_tool_choice(self, request: ChatCompletionRequest) -> None:
        choice = request.tool_choice
        if self._native is not None or self._tools is not None or choice is None or choice == "none":
            return
        if choice == "auto":
            raise BadRequest(
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            )
        named = request.forced_function
        described = f'"{choice}"' if named is None else f'function "{named[:100]}"'
        raise BadRequest(f"tool_choice={described} requires --tool-call-parser to be set")

    def _output_rules(
        self, request: ChatCompletionRequest, kwargs: Mapping[str, Any], prompt_ids: PromptIds
    ) -> OutputRules:
        constraint = requested_constraint(request)
        if self._native is not None:
            return self._native.rules(request, constraint, prompt_ids)
        return OutputRules(
            with_tool_choice(request, constraint, self._tools, self._settings.tool_strict_level),
            keeps_special_tokens=self._keeps_special_tokens(request),
            reasoning_ended=self._reasoning_ended(request, kwargs, prompt_ids),
        )

    def _encoded(self, prompt: Prompt, request: CompletionRequest) -> EncodedPrompt:
        options = encode_options(
            request, add_special_tokens=request.add_special_tokens, reserve_output=bool(request.max_tokens)
        )
        if isinstance(prompt, str):
            return self._encoder.text(prompt, options)
        return self._encoder.token_ids(prompt, options)

    def _keeps_special_tokens(self, request: ChatCompletionRequest) -> bool:
        """Whether a parser must see the special tokens of the output."""
        if self._reasoning is not None and self._reasoning.keeps_special_tokens:
            return True
        uses_tools = bool(request.tools) and request.tool_choice != "none"
        return self._tools is not None and self._tools.keeps_special_tokens and uses_tools

    def _reasoning_ended(
        self, request: ChatCompletionRequest, kwargs: Mapping[str, Any], prompt_ids: PromptIds
    ) -> bool | None:
        if not request.include_reasoning:
            return True
        fmt = self._reasoning
        if fmt is None:
            return None
        is_open = starts_with_reasoning(fmt, self._tools, prompt_ids, self._assets.vocabulary, kwargs)
        if is_open is not None:
            return not is_open
        return fmt.initial not in fmt.states

    def _id(self, request: SamplingFields, header: str | None) -> str:
        return header or request.request_id or self._new_id()

    def _generate_request(
        self, request: SamplingFields, request_id: str, prompt: EncodedPrompt, params: Any
    ) -> GenerateRequest:
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
