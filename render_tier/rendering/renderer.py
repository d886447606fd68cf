"""Requests to GenerateRequests: checks, template, tokens and parameters, in the order of vLLM's render.

Everything is synchronous and thread-safe; the server decides which thread pays for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from render_tier.core.formats import reasoning_format, starts_with_reasoning, tool_format
from render_tier.model import ModelAssets
from render_tier.model.assets import HARMONY_MODEL_TYPE
from render_tier.model.engines import EngineSlot
from render_tier.protocol import responses_as_chat
from render_tier.protocol.anthropic import CountTokensRequest, MessagesRequest
from render_tier.protocol.anthropic_as_chat import as_chat
from render_tier.protocol.chat import ChatCompletionRequest, ChatTemplateFields
from render_tier.protocol.completions import CompletionRequest, Prompt
from render_tier.protocol.errors import BadRequest, NotFound
from render_tier.protocol.generate import GenerateRequest, StreamOptions
from render_tier.protocol.messages import MEDIA_FIELDS
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
from render_tier.rendering.constraints import requested_constraint, with_tool_choice
from render_tier.rendering.conversation import MEDIA_TYPES, developer_as_system, to_conversation
from render_tier.rendering.encoder import EncodedPrompt, EncodeOptions, PromptEncoder
from render_tier.rendering.explain import Explainer, Explanation, TemplateFacts
from render_tier.rendering.guarded_chat import check_template, guarded_encoder
from render_tier.rendering.guarded_encoder import GuardedEncoder, MarkedText
from render_tier.rendering.harmony_chat import HarmonyChat
from render_tier.rendering.json_texts import texts_of
from render_tier.rendering.mistral_chat import MistralChat
from render_tier.rendering.native_chat import NativeChat, NativePrompt, OutputRules, Parsers
from render_tier.rendering.prompt_cache import PromptCache, cut_marks
from render_tier.rendering.rendered import Rendered
from render_tier.rendering.sampling import SamplingBuilder, SamplingDefaults
from render_tier.rendering.settings import ContentFormat, RenderSettings
from render_tier.rendering.system_order import refuses_inline_system
from render_tier.rendering.template import RESERVED_ARGUMENTS, ChatTemplate, TemplateCache
from render_tier.rendering.token_ids import PromptIds

NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat "
    "template if the tokenizer does not define one."
)


@dataclass(frozen=True)
class TemplatedPrompt:
    text: str
    """Marked, if there is a mark."""
    warnings: list[str]
    mark: str | None


class Renderer:
    """One per worker. Keeps compiled templates, and token IDs of earlier prompts (`PromptCache`)."""

    def __init__(
        self,
        assets: ModelAssets,
        settings: RenderSettings,
        *,
        engine: EngineSlot | None = None,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """``engine`` may change while requests are served; by default it is the tokenizer itself.

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
        self._guarded: GuardedEncoder | None = None
        if settings.escape_user_specials:
            self._guarded, self.prompt_cache = guarded_encoder(
                assets, self.engine, settings.prompt_cache_bytes
            )
        new_cache = partial(
            TemplateCache,
            seconds=settings.max_template_seconds,
            max_chars=settings.max_template_chars,
            guard=None if self._guarded is None else self._guarded.guard,
        )
        own = {source for source in (assets.chat_template, assets.tool_chat_template) if source is not None}
        own_templates = new_cache(capacity=len(own))
        self._own_templates = {source: own_templates.get(source) for source in own}
        self._request_templates = new_cache(capacity=settings.request_templates)
        if self._guarded is not None:
            for template in self._own_templates.values():
                check_template(template, self._guarded, self.engine, assets.special_tokens)
        self._native = self._native_chat()
        """For models whose chats no template writes."""
        self._merges_inline_system = refuses_inline_system((assets.chat_template, assets.tool_chat_template))

    def _native_chat(self) -> NativeChat | None:
        assets, name = self._assets, self._assets.served_names[0]
        parsers = Parsers(self._reasoning, self._tools, self._settings.tool_strict_level)
        if assets.mistral is not None:
            strict = self._settings.strict_history
            return MistralChat(name, assets.mistral, assets.vocabulary, parsers, strict_history=strict)
        if assets.config.get("model_type") == HARMONY_MODEL_TYPE:
            encode = partial(self.engine.ids, add_special_tokens=False)
            added = [str(token["content"]) for token in assets.tokenizer_json["added_tokens"]]
            date = self._settings.system_start_date
            return HarmonyChat(name, parsers, encode, added, start_date=date)
        return None

    @property
    def writes_chats(self) -> bool:
        """Whether there is anything that turns messages into a prompt."""
        return self._native is not None or self._assets.chat_template is not None

    def chat(self, request: ChatCompletionRequest, *, request_id: str | None = None) -> GenerateRequest:
        """As `render_chat`. Raises ApiError."""
        return self.render_chat(request, request_id=request_id).generate_request()

    def render_chat(self, request: ChatCompletionRequest, *, request_id: str | None = None) -> Rendered:
        """``request_id`` (the ``X-Request-Id`` header) wins over the body's. Raises ApiError."""
        self._check_model(request.model)
        _refuse_beam_search(request)
        self._check_tool_choice(request)
        asked_field = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        return self._render(request, f"chatcmpl-{self._id(request, request_id)}", asked_field)

    def explain_chat(self, request: ChatCompletionRequest, *, request_id: str | None = None) -> Explanation:
        """What `render_chat` gives, and why. Costs several times as much. Raises ApiError."""
        asked = request.model_copy(update={"return_token_offsets": True})
        reused = (request.kv_transfer_params or {}).get("prompt_token_ids") is not None
        rendered = self.render_chat(asked, request_id=request_id)
        generate = rendered.generate_request()
        explainer = Explainer(self._assets, self._settings, self._reasoning, self._tools)
        text, facts = None, None
        if not reused and self._native is None:
            kwargs = self._template_kwargs(request)
            templated = self._templated(request, kwargs)
            text = templated.text
            if self._guarded is not None and templated.mark is not None:
                text = self._guarded.guard.plain(text, templated.mark)
            facts = self._template_facts(request, kwargs, explainer)
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

    def _template_facts(
        self, request: ChatCompletionRequest, kwargs: dict[str, Any], explainer: Explainer
    ) -> TemplateFacts:
        variables = {"tools": self._template_tools(request), **kwargs}
        template = self._template(request, variables)
        configured = self._settings.chat_template_content_format
        accepted = template.accepted(kwargs)
        if request.chat_template is not None or kwargs.get("chat_template") is not None:
            source = "the request's"
        elif variables["tools"] is not None and self._assets.tool_chat_template != self._assets.chat_template:
            source = "the model's for tools"
        else:
            source = "the model's"
        return TemplateFacts(
            source=source,
            content_format=self._content_format(request, variables),
            content_format_why="found in the template's loops"
            if configured == "auto"
            else "--chat-template-content-format",
            variables=explainer.variables(request, accepted),
            ignored=sorted(kwargs.keys() - accepted.keys()),
            special_tokens=self._assets.special_tokens,
            developer_role="the template's own" if template.knows_developer_role else "turned into system",
        )

    def render_responses(self, request: ResponsesRequest) -> Rendered:
        """Raises ApiError."""
        self._check_model(request.model)
        if request.previous_response_id is not None:
            raise BadRequest(
                "previous_response_id is not supported: nothing is stored here. Send the whole history in "
                "`input`.",
                param="previous_response_id",
                type="invalid_request_error",
            )
        self._sampling.check_asked(request.max_output_tokens, "max_output_tokens")
        joined = self._native is None or self._native.joins_parts
        if not joined and request.previous_input_messages:
            raise BadRequest(
                "previous_input_messages is not supported. Send the history as items of `input`.",
                param="previous_input_messages",
            )
        chat = responses_as_chat.as_chat(request, joined=joined)
        rendered = self._render(chat, request.request_id or f"resp_{self._new_id()}", "max_output_tokens")
        generate = rendered.request
        generate.reasoning_ended = None
        generate.kv_transfer_params = chat.kv_transfer_params
        generate.ec_transfer_params = chat.ec_transfer_params
        return rendered

    def _render(self, request: ChatCompletionRequest, name: str, asked_field: str) -> Rendered:
        """``name``: the generate request's id. ``asked_field``: what the client calls the output limit."""
        self._check_prompt_fields(request)
        _refuse_media_options(request)
        asked = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        if self._native is None or self._native.cuts_to_fit:
            self._sampling.check_asked(asked, asked_field)
        kwargs = self._template_kwargs(request)
        warnings: list[str] = []
        prompt = self._reused_prompt(request)
        if prompt is None:
            prompt, warnings = self._prompt(request, kwargs, reserve_output=bool(asked))
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
        if warnings:
            generate.warnings = warnings
        return Rendered(generate, prompt.ids)

    def render_messages(self, request: MessagesRequest, *, request_id: str | None = None) -> Rendered:
        """Raises ApiError."""
        chat = as_chat(request, merge_inline_system=self._merges_inline_system)
        return self.render_chat(chat, request_id=request_id)

    def count_tokens(self, request: CountTokensRequest) -> int:
        """Of the prompt that the request renders to. Raises ApiError."""
        chat = as_chat(request, merge_inline_system=self._merges_inline_system)
        self._check_model(chat.model)
        self._check_tool_choice(chat)
        self._check_prompt_fields(chat)
        return len(self._prompt(chat, self._template_kwargs(chat), reserve_output=False)[0].ids)

    def completions(
        self, request: CompletionRequest, *, request_id: str | None = None
    ) -> list[GenerateRequest]:
        """One for each prompt. Raises ApiError."""
        self._check_model(request.model)
        _refuse_beam_search(request)
        if request.suffix is not None:
            _refuse_suffix(request)
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

    def tokenize(self, request: TokenizeTextRequest | TokenizeChatRequest) -> TokenizeResponse:
        """Raises ApiError."""
        self._check_model(request.model)
        if isinstance(request, TokenizeChatRequest):
            self._check_trust(request)
            _refuse_media_options(request)
            ids = self._chat_ids(request)
        else:
            ids = self._encoder.plain_ids(request.prompt, add_special_tokens=request.add_special_tokens)
        strings = list(map(self._assets.tokenizer.piece, ids)) if request.return_token_strs else None
        return TokenizeResponse(len(ids), self._assets.max_model_len, ids, strings)

    def _chat_ids(self, request: TokenizeChatRequest) -> list[int]:
        """As in vLLM, gpt-oss's are those of its template, which its chats are not rendered with."""
        kwargs = self._template_kwargs(request)
        if self._assets.mistral is not None and self._native is not None:
            return self._native_prompt(self._native, request, kwargs, is_cut=False).token_ids
        templated = self._templated(request, kwargs)
        if self._guarded is not None and templated.mark is not None:
            ids = self._guarded.ids(MarkedText(templated.text, templated.mark)).to_list()
            return self._guarded.wrapped(ids) if request.add_special_tokens else ids
        return self._encoder.plain_ids(templated.text, add_special_tokens=request.add_special_tokens)

    def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        """IDs that the tokenizer does not have spell nothing. Raises ApiError."""
        self._check_model(request.model)
        return DetokenizeResponse(self._assets.vocabulary.text(request.tokens))

    def check_model(self, model: str | None) -> None:
        """Raises NotFound for a name that is not served here."""
        self._check_model(model)

    def _check_model(self, model: str | None) -> None:
        if model and model not in self._assets.served_names:
            aliases = ", ".join(self._assets.served_names)
            raise NotFound(
                f"The model `{model[:200]}` does not exist. Valid aliases: {aliases}.", param="model"
            )

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

    def _check_prompt_fields(self, request: ChatCompletionRequest) -> None:
        if self._native is not None:
            self._native.check(request)
        else:
            self._check_trust(request)

    def _check_trust(self, request: ChatTemplateFields) -> None:
        brings_template = request.chat_template is not None or (
            (request.chat_template_kwargs or {}).get("chat_template") is not None
        )
        if brings_template and not self._settings.trust_request_chat_template:
            raise BadRequest(
                "Chat template is passed with request, but --trust-request-chat-template is not set. "
                "Refused request with untrusted chat template."
            )

    def _template_kwargs(self, request: ChatTemplateFields) -> dict[str, Any]:
        """The server's defaults, the request's kwargs and the request's fields, later ones winning; the same
        set decides the template and whether the parser takes reasoning to be on."""
        given = dict(request.chat_template_kwargs or {})
        for name in RESERVED_ARGUMENTS & given.keys():
            raise BadRequest(f"chat_template_kwargs cannot set {name!r}")
        fields: dict[str, Any] = {
            "add_generation_prompt": request.add_generation_prompt,
            "continue_final_message": request.continue_final_message,
        }
        if isinstance(request, ChatCompletionRequest):
            fields["documents"] = request.documents
            fields["reasoning_effort"] = request.reasoning_effort
            if request.reasoning_effort is not None and "enable_thinking" not in given:
                fields["enable_thinking"] = request.reasoning_effort != "none"
        merged = {**given, **_given_values(fields)}
        return {**self._settings.default_chat_template_kwargs, **_given_values(merged)}

    def _prompt(
        self, request: ChatCompletionRequest, kwargs: dict[str, Any], *, reserve_output: bool
    ) -> tuple[EncodedPrompt, list[str]]:
        """The conversation's prompt, and what was repaired in it."""
        options = _encode_options(request, reserve_output=reserve_output)
        if self._native is None:
            templated = self._templated(request, kwargs)
            return self._encode(templated, options), templated.warnings
        is_cut = self._native.cuts_to_fit and request.truncate_prompt_tokens is not None
        written = self._native_prompt(self._native, request, kwargs, is_cut=is_cut)
        if self._native.cuts_to_fit:
            return self._encoder.token_ids(written.token_ids, options), written.warnings
        length, limit = len(written.token_ids), self._assets.max_model_len
        if length > limit:
            raise BadRequest(f"Input length ({length}) exceeds model's maximum context length ({limit}).")
        return EncodedPrompt(PromptIds.of(written.token_ids)), written.warnings

    def _native_prompt(
        self, native: NativeChat, request: ChatTemplateFields, kwargs: dict[str, Any], *, is_cut: bool
    ) -> NativePrompt:
        """``is_cut``: the prompt may be longer than the context."""
        tools = self._template_tools(request)
        if not is_cut:
            self._encoder.check_chars(sum(map(len, texts_of([request.messages, tools]))))
        return native.prompt(request, kwargs, tools)

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

    def _templated(self, request: ChatTemplateFields, kwargs: Mapping[str, Any]) -> TemplatedPrompt:
        tools = self._template_tools(request)
        variables: dict[str, Any] = {"tools": tools, **kwargs}
        template = self._template(request, variables)
        warnings: list[str] = []
        conversation = to_conversation(
            request.messages,
            self._content_format(request, variables),
            model=self._assets.served_names[0],
            strict_history=self._settings.strict_history,
            warnings=warnings,
        )
        if not template.knows_developer_role and any(
            message["role"] == "developer" for message in conversation
        ):
            conversation = developer_as_system(conversation)
        accepted = template.accepted(variables)
        own, mark = self._assets.special_tokens, None
        if self._guarded is not None:
            mark = self._guarded.guard.free_mark(conversation, accepted)
            own = self._guarded.guard.marked_values(own, mark)
        return TemplatedPrompt(template.render(conversation, {**own, **accepted}, mark), warnings, mark)

    def _encode(self, templated: TemplatedPrompt, options: EncodeOptions) -> EncodedPrompt:
        if self._guarded is None or templated.mark is None:
            return self._encoder.text(templated.text, options)
        return self._encoder.marked(MarkedText(templated.text, templated.mark), self._guarded, options)

    def _template_tools(self, request: ChatTemplateFields) -> list[dict[str, Any]] | None:
        if request.tools is None:
            return None
        hidden = (
            self._settings.exclude_tools_when_tool_choice_none
            and isinstance(request, ChatCompletionRequest)
            and request.tool_choice == "none"
        )
        return None if hidden else [tool.template_form() for tool in request.tools]

    def _content_format(self, request: ChatTemplateFields, variables: Mapping[str, Any]) -> ContentFormat:
        """As in vLLM, a template among the kwargs does not decide on it."""
        configured = self._settings.chat_template_content_format
        if configured != "auto":
            return configured
        own = self._assets.chat_template is not None
        template = self._template(request, {**variables, "chat_template": None} if own else variables)
        return template.content_format

    def _template(self, request: ChatTemplateFields, variables: Mapping[str, Any]) -> ChatTemplate:
        brought = request.chat_template or variables.get("chat_template")
        if isinstance(brought, str):
            return self._request_templates.get(brought)
        has_tools = variables.get("tools") is not None
        source = self._assets.tool_chat_template if has_tools else self._assets.chat_template
        if source is None:
            raise BadRequest(NO_TEMPLATE)
        return self._own_templates[source]

    def _reused_prompt(self, request: ChatCompletionRequest) -> EncodedPrompt | None:
        """Prompt IDs that an earlier stage already rendered, taken out of ``kv_transfer_params``."""
        transfer = request.kv_transfer_params
        if not transfer or "prompt_token_ids" not in transfer:
            return None
        ids = transfer["prompt_token_ids"]
        request.kv_transfer_params = {
            name: value for name, value in transfer.items() if name != "prompt_token_ids"
        }
        if ids is None or request.echo or _has_media(request.messages):
            return None
        param = "kv_transfer_params.prompt_token_ids"
        if not isinstance(ids, list) or not ids or any(type(item) is not int or item < 0 for item in ids):
            raise invalid(
                "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers.",
                param,
            )
        self._encoder.check_ids(ids, param)
        self._encoder.check_fits(len(ids))
        return EncodedPrompt(PromptIds.of(ids))

    def _encoded(self, prompt: Prompt, request: CompletionRequest) -> EncodedPrompt:
        options = _encode_options(
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


def _encode_options(
    request: SamplingFields, *, reserve_output: bool, add_special_tokens: bool | None = None
) -> EncodeOptions:
    if add_special_tokens is None:
        assert isinstance(request, ChatCompletionRequest)
        add_special_tokens = request.add_special_tokens
    return EncodeOptions(
        add_special_tokens=add_special_tokens,
        keep=request.truncate_prompt_tokens,
        side=request.truncation_side,
        offsets=bool(request.return_token_offsets),
        reserve_output=reserve_output,
    )


def _given_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without null and "auto", which mean "not given"."""
    return {
        name: value
        for name, value in values.items()
        if value is not None and not (value == "auto" and isinstance(value, str))
    }


def _has_media(messages: list[dict[str, Any]]) -> bool:
    return any(
        isinstance(part, dict)
        and (part.get("type") in MEDIA_TYPES or any(field in part for field in MEDIA_FIELDS))
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


def _refuse_beam_search(request: SamplingFields) -> None:
    if request.use_beam_search:
        raise BadRequest("Beam search is not supported by the render endpoint")


def _refuse_suffix(request: CompletionRequest) -> None:
    if request.echo:
        raise BadRequest("Echo is unsupported with suffix.", param="suffix")
    if request.truncate_prompt_tokens is not None:
        raise BadRequest("suffix is not supported with truncate_prompt_tokens", param="suffix")
    raise BadRequest("suffix is only supported for models with FIM completion rendering", param="suffix")


def _refuse_media_options(request: ChatTemplateFields) -> None:
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        if getattr(request, name):
            effect = "preprocessing" if name == "mm_processor_kwargs" else "media loading"
            raise invalid(
                f"Per-request {name} are disabled by default because they can change multimodal {effect} "
                "resource usage. Start the server with --trust-request-mm-kwargs only when clients are "
                "trusted.",
                name,
            )
