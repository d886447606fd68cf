"""Chats to prompts: the template and its variables, or a format that a library writes; then token IDs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from render_tier.model import ModelAssets
from render_tier.model.assets import HARMONY_MODEL_TYPE
from render_tier.model.engines import EngineSlot
from render_tier.protocol.chat import ChatCompletionRequest, ChatTemplateFields
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.request_fields import SamplingFields
from render_tier.protocol.tokenize import TokenizeChatRequest
from render_tier.protocol.validation import invalid
from render_tier.rendering.conversation import developer_as_system, to_conversation
from render_tier.rendering.encoder import EncodedPrompt, EncodeOptions, PromptEncoder
from render_tier.rendering.explain import Explainer, TemplateFacts
from render_tier.rendering.guarded_chat import check_template
from render_tier.rendering.guarded_encoder import GuardedEncoder, MarkedText
from render_tier.rendering.harmony_chat import HarmonyChat
from render_tier.rendering.image_parts import Mark, MediaMarks, has_media
from render_tier.rendering.json_texts import texts_of
from render_tier.rendering.mistral_chat import MistralChat
from render_tier.rendering.native_chat import NativeChat, NativePrompt, Parsers, least_tokens, without_media
from render_tier.rendering.settings import ContentFormat, RenderSettings
from render_tier.rendering.spelled_places import (
    check_tokenizer,
    spelled_marks,
    stand_ins_in,
    with_stand_ins,
)
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
    places: tuple[Mark, ...] = ()
    """Of the media that the conversation has, those that are no tokens yet."""


class ChatPrompts:
    """Keeps the compiled templates. Thread-safe."""

    def __init__(
        self,
        assets: ModelAssets,
        settings: RenderSettings,
        parsers: Parsers,
        encoder: PromptEncoder,
        engine: EngineSlot,
        guarded: GuardedEncoder | None,
        marks: MediaMarks | None = None,
    ) -> None:
        """``marks``: for a model that takes images. Raises BadRequest for a template that does not compile,
        ModelLoadError for one that the guard cannot keep apart, and for a tokenizer with which images cannot
        be placed."""
        check_tokenizer(marks, assets.tokenizer_json)
        self._assets = assets
        self._settings = settings
        self._parsers = parsers
        self._encoder = encoder
        self._engine = engine
        self._guarded = guarded
        self._marks = marks
        new_cache = partial(
            TemplateCache,
            seconds=settings.max_template_seconds,
            max_chars=settings.max_template_chars,
            guard=None if guarded is None else guarded.guard,
        )
        own = {source for source in (assets.chat_template, assets.tool_chat_template) if source is not None}
        own_templates = new_cache(capacity=len(own))
        self._own_templates = {source: own_templates.get(source) for source in own}
        self._request_templates = new_cache(capacity=settings.request_templates)
        if guarded is not None:
            for template in self._own_templates.values():
                check_template(template, guarded, engine, assets.special_tokens)
        self.native = self._native_chat()
        """For models whose chats no template writes."""

    def _native_chat(self) -> NativeChat | None:
        assets, name = self._assets, self._assets.served_names[0]
        if assets.mistral is not None:
            strict = self._settings.strict_history
            return MistralChat(
                name,
                assets.mistral,
                assets.vocabulary,
                self._parsers,
                strict_history=strict,
                marks=self._marks,
            )
        if assets.config.get("model_type") == HARMONY_MODEL_TYPE:
            encode = partial(self._engine.ids, add_special_tokens=False)
            added = [str(token["content"]) for token in assets.tokenizer_json["added_tokens"]]
            date = self._settings.system_start_date
            return HarmonyChat(name, self._parsers, encode, added, start_date=date)
        return None

    def plain_text(self, request: ChatCompletionRequest, kwargs: Mapping[str, Any]) -> str:
        """What the template writes, without the guard's marks."""
        templated = self._templated(request, kwargs)
        if self._guarded is None or templated.mark is None:
            return templated.text
        return self._guarded.guard.plain(templated.text, templated.mark)

    def facts(
        self, request: ChatCompletionRequest, kwargs: dict[str, Any], explainer: Explainer
    ) -> TemplateFacts:
        """Which template writes the prompt, with what, and why."""
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

    def check_fields(self, request: ChatCompletionRequest) -> None:
        """Raises BadRequest for fields that this model's chats cannot have."""
        if self.native is not None:
            self.native.check(request)
        else:
            self.check_trust(request)

    def check_trust(self, request: ChatTemplateFields) -> None:
        """Raises BadRequest for a template that comes with the request, unless that is allowed."""
        brings_template = request.chat_template is not None or (
            (request.chat_template_kwargs or {}).get("chat_template") is not None
        )
        if brings_template and not self._settings.trust_request_chat_template:
            raise BadRequest(
                "Chat template is passed with request, but --trust-request-chat-template is not set. "
                "Refused request with untrusted chat template."
            )

    def template_kwargs(self, request: ChatTemplateFields) -> dict[str, Any]:
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

    def prompt(
        self, request: ChatCompletionRequest, kwargs: dict[str, Any], *, reserve_output: bool
    ) -> tuple[EncodedPrompt, list[str]]:
        """The conversation's prompt, and what was repaired in it."""
        options = encode_options(request, reserve_output=reserve_output)
        if self.native is None:
            templated = self._templated(request, kwargs)
            return self._encode(templated, options), templated.warnings
        is_cut = self.native.cuts_to_fit and request.truncate_prompt_tokens is not None
        written = self._native_prompt(self.native, request, kwargs, is_cut=is_cut)
        if self.native.cuts_to_fit:
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
            # The libraries take their time for every message, however little it says.
            self._encoder.check_fits(least_tokens(request.messages, native.message_tokens), exact=False)
            self._encoder.check_chars(sum(map(len, texts_of([without_media(request.messages), tools]))))
        return native.prompt(request, kwargs, tools)

    def reused(self, request: ChatCompletionRequest) -> EncodedPrompt | None:
        """Prompt IDs that an earlier stage already rendered, taken out of ``kv_transfer_params``."""
        transfer = request.kv_transfer_params
        if not transfer or "prompt_token_ids" not in transfer:
            return None
        ids = transfer["prompt_token_ids"]
        request.kv_transfer_params = {
            name: value for name, value in transfer.items() if name != "prompt_token_ids"
        }
        if ids is None or request.echo or has_media(request.messages):
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
            marks=self._marks,
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
        text = template.render(conversation, {**own, **accepted}, mark)
        places = () if self._marks is None else spelled_marks(self._marks.of(request.messages))
        return TemplatedPrompt(text, warnings, mark, places)

    def _encode(self, templated: TemplatedPrompt, options: EncodeOptions) -> EncodedPrompt:
        if self._guarded is not None and templated.mark is not None:
            marked = _with_marked_places(templated, templated.mark, self._guarded)
            return self._encoder.marked(marked, self._guarded, options)
        prompt = self._encoder.text(with_stand_ins(templated.text, templated.places), options)
        ids = self._ids_with_places(templated, add_special_tokens=options.add_special_tokens)
        return prompt if ids is None else self._encoder.token_ids(ids, options)

    def _ids_with_places(self, templated: TemplatedPrompt, *, add_special_tokens: bool) -> list[int] | None:
        """None where places are to be looked for in the text, if there are any."""
        if not templated.places:
            return None
        ids = self._encoder.plain_ids(templated.text, add_special_tokens=add_special_tokens)
        return stand_ins_in(ids, templated.text, templated.places)

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

    def ids(self, request: TokenizeChatRequest) -> list[int]:
        """As in vLLM, gpt-oss's are those of its template, which its chats are not rendered with."""
        kwargs = self.template_kwargs(request)
        if self._assets.mistral is not None and self.native is not None:
            return self._native_prompt(self.native, request, kwargs, is_cut=False).token_ids
        templated = self._templated(request, kwargs)
        if self._guarded is not None and templated.mark is not None:
            ids = self._guarded.ids(_with_marked_places(templated, templated.mark, self._guarded)).to_list()
            return self._guarded.wrapped(ids) if request.add_special_tokens else ids
        placed = self._ids_with_places(templated, add_special_tokens=request.add_special_tokens)
        if placed is not None:
            return placed
        text = with_stand_ins(templated.text, templated.places)
        return self._encoder.plain_ids(text, add_special_tokens=request.add_special_tokens)


def _with_marked_places(templated: TemplatedPrompt, mark: str, guarded: GuardedEncoder) -> MarkedText:
    text = with_stand_ins(templated.text, templated.places, partial(guarded.guard.marked, mark=mark))
    return MarkedText(text, mark)


def encode_options(
    request: SamplingFields, *, reserve_output: bool, add_special_tokens: bool | None = None
) -> EncodeOptions:
    """``add_special_tokens``: by default what a chat request says."""
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
