"""What a request decides about the reading of its output: resolved once, named by a digest.

The digest is of the raw JSON bytes of the request and of the prompt's IDs, so a later call that sends them
again costs a hash, and one that does not costs a look-up.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec

from render_tier.core.formats import PLAIN, reasoning_format, starts_with_reasoning, tool_format
from render_tier.core.formats.bypassed import bypassed
from render_tier.core.formats.guided import answer_format
from render_tier.core.grammar import Grammar
from render_tier.core.machine import Machine, MachineOptions
from render_tier.core.prompt_state import switched
from render_tier.core.stops import StopTable
from render_tier.core.tool_schema import ToolSchemas
from render_tier.derendering.response_facts import response_facts
from render_tier.derendering.served import ServedModel, check_ids
from render_tier.derendering.settings import DerenderSettings
from render_tier.protocol import anthropic_as_chat
from render_tier.protocol.anthropic import MessagesRequest
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.request_fields import SamplingFields
from render_tier.protocol.responses_as_chat import as_chat
from render_tier.protocol.responses_request import ResponsesRequest
from render_tier.protocol.validation import decode_object, misshapen

DIGEST_SIZE: Final = 16
_NUMBERED: Final = re.compile(r"functions\..*:(\d{1,9})", re.DOTALL)

Kind = Literal["chat", "completion", "messages", "responses"]
"""Of a request. All but completions are read as chat."""


@dataclass(frozen=True, slots=True)
class Context:
    """``prompt``: whether the prompt left reasoning open (None: it says nothing). ``prompt_length`` 0: not
    known.

    ``hides_reasoning``: reasoning is neither shown nor given as IDs or logprobs. ``counts_reasoning``: a
    reasoning parser is at work. ``forced``: tool_choice is "required" or names a function (``named``).
    ``drops_calls``: calls are recognised and left out. ``call_id_length``: as `ToolFormat.call_id_length`.
    ``calls_before``: the next call's number, where IDs count the calls (`ToolFormat.numbers_calls`).
    ``one_call``: parallel_tool_calls is false.
    ``answer``: what the answer repeats of a request that is none of chat. ``size``: bytes of the request,
    which bound what is held on to.
    """

    kind: Kind
    digest: bytes
    grammar: Grammar
    options: MachineOptions
    prompt: bool | None = None
    prompt_length: int = 0
    parsed: bool = False
    counts_reasoning: bool = False
    hides_reasoning: bool = False
    wants_logprobs: bool = False
    returns_token_ids: bool = False
    named: bool = False
    forced: bool = False
    one_call: bool = False
    drops_calls: bool = False
    call_id_length: int | None = None
    calls_before: int | None = None
    ignores_eos: bool = False
    answer: object = None
    size: int = 0

    def machine(self) -> Machine:
        return Machine(self.grammar, self.options, self.prompt)

    def derived_id(self, request_id: str, place: str, size: int = 16) -> str:
        """Names what stands at ``place`` of the answer, in ``size`` bytes of hexadecimal: the same on any
        replica and whenever the same chunk is derendered, and never shared by two requests."""
        request = request_id.encode(errors="surrogatepass")
        digest = hashlib.blake2b(request, key=self.digest, digest_size=size)
        digest.update(place.encode())
        return digest.hexdigest()


def number_of(call_id: str) -> int:
    """The number in an ID of a family that numbers its calls; -1: none."""
    found = _NUMBERED.fullmatch(call_id)
    return int(found[1]) if found is not None else -1


class ContextResolver:
    """Makes contexts out of requests, for one model and configuration."""

    def __init__(self, model: ServedModel, settings: DerenderSettings) -> None:
        self._model = model
        self._settings = settings
        self._reasoning = reasoning_format(settings.reasoning_parser) if settings.reasoning_parser else None
        self._tool = tool_format(settings.tool_parser) if settings.tool_parser else None
        vocabulary = model.vocabulary
        self._plain = Grammar(None, PLAIN, vocabulary)
        without_calls = bypassed(self._tool) if self._tool is not None else PLAIN
        self._no_tools = Grammar(self._reasoning, without_calls, vocabulary)
        self._with_tools = Grammar(self._reasoning, self._tool, vocabulary) if self._tool else self._no_tools
        self._required = self._with_tools
        if self._tool is not None and (self._tool.bare_json or self._tool.bare_list):
            guided = answer_format(self._tool, required=True, function=None)
            self._required = Grammar(self._reasoning, guided, vocabulary)
        self._seed = f"{model.fingerprint}\0{settings.reasoning_parser}\0{settings.tool_parser}\0".encode()

    @property
    def has_parser(self) -> bool:
        return self._reasoning is not None or self._tool is not None

    def digest(self, kind: Kind, request: bytes, prompt_token_ids: bytes) -> bytes:
        """The name of the context of these raw JSON values (empty: not given)."""
        digest = hashlib.blake2b(self._seed, digest_size=DIGEST_SIZE, person=kind.encode())
        digest.update(len(request).to_bytes(8, "little"))
        digest.update(request)
        digest.update(prompt_token_ids)
        return digest.digest()

    def resolve(self, kind: Kind, digest: bytes, request: bytes, prompt_token_ids: bytes) -> Context:
        """Read a request. Raises BadRequest for one that render would refuse too."""
        prompt_ids = self._prompt_ids(prompt_token_ids)
        make = {
            "chat": self._chat,
            "completion": self._completion,
            "messages": self._messages,
            "responses": self._responses,
        }[kind]
        return replace(make(digest, request, prompt_ids), size=len(request))

    def _prompt_ids(self, raw: bytes) -> list[int] | None:
        if not raw:
            return None
        try:
            prompt_ids = msgspec.json.decode(raw, type=list[int])
        except msgspec.MsgspecError as error:
            raise misshapen(
                [{"type": "list_type", "loc": ("prompt_token_ids",), "msg": str(error)}]
            ) from None
        limit = self._model.max_model_len
        if len(prompt_ids) > limit:
            raise BadRequest(f"prompt_token_ids length ({len(prompt_ids)}) exceeds max_model_len ({limit}).")
        check_ids(self._model, prompt_ids, "prompt_token_ids")
        return prompt_ids

    def _completion(self, digest: bytes, raw: bytes, prompt_ids: list[int] | None) -> Context:
        request = (
            CompletionRequest.parse(
                decode_object(raw),
                max_stop_strings=self._settings.max_stop_strings,
                max_prompts=self._settings.max_prompts,
            )
            if raw
            else None
        )
        return Context(
            "completion",
            digest,
            self._plain,
            self._options(request),
            prompt_length=len(prompt_ids or ()),
            returns_token_ids=bool(request and request.return_token_ids),
            ignores_eos=bool(request and request.ignore_eos),
        )

    def _chat(self, digest: bytes, raw: bytes, prompt_ids: list[int] | None) -> Context:
        if not raw:
            return self._of_nothing("chat", digest, prompt_ids)
        data = decode_object(raw)
        request = ChatCompletionRequest.parse(data, max_stop_strings=self._settings.max_stop_strings)
        return self._read_as_chat("chat", digest, request, data.get("tools"), prompt_ids)

    def _messages(self, digest: bytes, raw: bytes, prompt_ids: list[int] | None) -> Context:
        if not raw:
            return self._of_nothing("messages", digest, prompt_ids)
        limit = self._settings.max_stop_strings
        chat = anthropic_as_chat.as_chat(MessagesRequest.parse(decode_object(raw), max_stop_strings=limit))
        tools = [tool.template_form() for tool in chat.tools or ()]
        return self._read_as_chat("messages", digest, chat, tools, prompt_ids)

    def _of_nothing(self, kind: Kind, digest: bytes, prompt_ids: list[int] | None) -> Context:
        """Without a request, where no parser needs one."""
        return Context(kind, digest, self._plain, self._options(None), prompt_length=len(prompt_ids or ()))

    def _responses(self, digest: bytes, raw: bytes, prompt_ids: list[int] | None) -> Context:
        if not raw:
            raise misshapen([{"type": "missing", "loc": ("responses_request",), "msg": "Field required"}])
        data = decode_object(raw)
        request = ResponsesRequest.parse(data, max_stop_strings=self._settings.max_stop_strings)
        chat = as_chat(request)
        tools = [tool.template_form() for tool in chat.tools or ()]
        context = self._read_as_chat("responses", digest, chat, tools, prompt_ids)
        return replace(context, answer=response_facts(request, data, self._model))

    def _read_as_chat(
        self,
        kind: Kind,
        digest: bytes,
        request: ChatCompletionRequest,
        tools: Sequence[Any] | None,
        prompt_ids: list[int] | None,
    ) -> Context:
        """``tools``: those of the request as chat has them."""
        length = len(prompt_ids or ())
        choice = request.tool_choice
        named = request.forced_function is not None
        none = not request.tools or choice in (None, "none")
        drops = (
            none
            and bool(request.tools)
            and self._settings.tool_choice_none == "drop"
            and self._tool is not None
            and self._tool.none_drops
        )
        counts = self._reasoning is not None
        hides = counts and not request.include_reasoning
        return Context(
            kind,
            digest,
            self._no_tools if none and not drops else self._grammar(choice, request.forced_function),
            replace(
                self._options(request),
                tools=ToolSchemas(tools),
                repeat_reasoning=self._repeats_reasoning(request),
            ),
            prompt=self._prompt_state(request, prompt_ids),
            prompt_length=length,
            parsed=self.has_parser,
            counts_reasoning=counts,
            hides_reasoning=hides,
            wants_logprobs=bool(request.logprobs),
            returns_token_ids=bool(request.return_token_ids) and not hides,
            named=named,
            forced=named or choice == "required",
            one_call=request.parallel_tool_calls is False,
            drops_calls=drops,
            call_id_length=self._tool.call_id_length if self._tool is not None else None,
            calls_before=self._calls_before(request),
            ignores_eos=request.ignore_eos,
        )

    def _grammar(self, choice: object, function: str | None) -> Grammar:
        """The grammar of an answer with tools. One for a named function is made for its request."""
        if self._tool is None or not (self._tool.bare_json or self._tool.bare_list):
            return self._with_tools
        if function is not None and self._tool.bare_json:
            guided = answer_format(self._tool, required=False, function=function)
            return Grammar(self._reasoning, guided, self._model.vocabulary)
        return self._required if function is not None or choice == "required" else self._with_tools

    def _calls_before(self, request: ChatCompletionRequest) -> int | None:
        if self._tool is None or not self._tool.numbers_calls:
            return None
        turns = [turn for turn in request.messages if turn.get("role") == "assistant"]
        calls = [call for turn in turns for call in turn.get("tool_calls") or ()]
        # A client may have left out old rounds: what is left keeps its numbers.
        return max([len(calls), *(number_of(str(call.get("id"))) + 1 for call in calls)])

    def _prompt_state(self, request: ChatCompletionRequest, prompt_ids: list[int] | None) -> bool | None:
        if self._reasoning is None:
            return None
        kwargs = self._template_kwargs(request)
        return starts_with_reasoning(self._reasoning, self._tool, prompt_ids, self._model.vocabulary, kwargs)

    def _repeats_reasoning(self, request: ChatCompletionRequest) -> bool:
        values = self._reasoning.repeated_by if self._reasoning is not None else {}
        return switched(values, self._template_kwargs(request))

    def _template_kwargs(self, request: ChatCompletionRequest) -> dict[str, Any]:
        kwargs = {**self._settings.default_chat_template_kwargs, **(request.chat_template_kwargs or {})}
        if request.reasoning_effort is not None:
            kwargs.setdefault("enable_thinking", request.reasoning_effort != "none")
        return kwargs

    def _options(self, request: SamplingFields | None) -> MachineOptions:
        settings = self._settings
        if request is None:
            return MachineOptions(hold_limit=settings.hold_limit, blank_limit=settings.blank_limit)
        stop = request.stop
        stops = [stop] if isinstance(stop, str) else list(stop or ())
        if not all(stops):
            raise BadRequest("stop cannot contain an empty string.", param="stop")
        return MachineOptions(
            stops=StopTable(stops) if stops else None,
            stop_scope=settings.stop_scope,
            include_stop=request.include_stop_str_in_output,
            min_tokens=request.min_tokens,
            skip_special_tokens=request.skip_special_tokens,
            hold_limit=settings.hold_limit,
            blank_limit=settings.blank_limit,
        )
