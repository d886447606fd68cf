"""A chat template compiled once: what it accepts, and conversation to text as transformers renders it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any

import jinja2
import jinja2.meta

from render_tier.protocol.errors import BadRequest
from render_tier.rendering.content_format import detect_content_format
from render_tier.rendering.settings import ContentFormat
from render_tier.rendering.special_guard import SpecialGuard
from render_tier.rendering.template_meter import BudgetExceeded, with_budget
from render_tier.rendering.template_sandbox import TemplateEnvironment, run_within

CONTINUE_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""transformers' marker; its trailing space tells a template that trims from one that does not."""
RENDERER_ARGUMENTS = frozenset(
    {
        *(
            "chat_template",
            "tokenize",
            "padding",
            "truncation",
            "max_length",
            "return_tensors",
            "return_dict",
        ),
        *("return_assistant_tokens_mask", "tokenizer_kwargs", "processor_kwargs"),
    }
)
"""Arguments of transformers' function that are not template variables: accepted in kwargs, without effect."""
RESERVED_ARGUMENTS = frozenset({"messages", "conversation"})
"""What kwargs may not replace."""
ALWAYS_ACCEPTED = frozenset({"tools", "documents", "add_generation_prompt", "continue_final_message"})


class ChatTemplate:
    """Render may run on several threads."""

    def __init__(
        self, source: str, *, seconds: float, max_chars: int, guard: SpecialGuard | None = None
    ) -> None:
        """``guard`` is needed for marked renders. Raises jinja2.TemplateSyntaxError for a template that does
        not compile."""
        self._source = source
        self._guard = guard
        self._marked_templates: dict[str, jinja2.Template] = {}
        self._seconds = seconds
        self._max_chars = max_chars
        environment = TemplateEnvironment()
        tree = environment.parse(source)
        self.variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
        self.content_format: ContentFormat = detect_content_format(tree)
        self.knows_developer_role = '"developer"' in source or "'developer'" in source
        with with_budget(seconds, max_chars):
            self._template = environment.from_string(source)

    def accepted(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Those of ``kwargs`` that reach the template."""
        names = (self.variables | ALWAYS_ACCEPTED) - RENDERER_ARGUMENTS
        return {name: value for name, value in kwargs.items() if name in names}

    def render(
        self,
        conversation: list[dict[str, Any]],
        variables: Mapping[str, Any],
        mark: str | None = None,
    ) -> str:
        """The prompt text. ``variables`` hold the special tokens, the accepted kwargs and the tools.

        ``mark``: write the template's own special tokens marked with it (`SpecialGuard`).

        Raises BadRequest: the template's own reason for a refusal, or a budget that was exceeded.
        """
        if not conversation:
            raise BadRequest(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        values = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
        continued = bool(values.pop("continue_final_message", False))
        if continued and values["add_generation_prompt"]:
            raise BadRequest(
                "continue_final_message and add_generation_prompt are not compatible: the first continues "
                "the final message, the second starts a new one."
            )
        final_text = ""
        if continued:
            conversation, final_text = self._to_continue(conversation)
        try:
            text = run_within(
                self._seconds, self._max_chars, self._compiled(mark), {**values, "messages": conversation}
            )
        except BudgetExceeded as error:
            raise BadRequest(str(error)) from error
        except Exception as error:  # a template may raise anything; whatever it is, the input did not suit it
            raise BadRequest(_reason(error)) from error
        return _cut_at_mark(text, final_text) if continued else text

    def _compiled(self, mark: str | None) -> jinja2.Template:
        if mark is None or self._guard is None:
            return self._template
        found = self._marked_templates.get(mark)
        if found is None:
            rewrite = partial(self._guard.mark_literals, mark=mark)
            with with_budget(self._seconds, self._max_chars):
                found = TemplateEnvironment(rewrite).from_string(self._source)
            self._marked_templates[mark] = found
        return found

    def _to_continue(self, conversation: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        """The conversation with the mark at the end of its last text, and that text."""
        last = copy.deepcopy(conversation[-1])
        content = last.get("content")
        if content is None:
            raise BadRequest(
                'continue_final_message is set but the final message has no "content" to continue!'
            )
        if "content" not in self._source:
            raise BadRequest(
                "continue_final_message is set but the chat template does not print message content"
            )
        if isinstance(content, list):
            for part in reversed(content):
                if "text" in part:
                    final_text = part["text"]
                    part["text"] = final_text + CONTINUE_MARK
                    break
            else:
                raise BadRequest(
                    "continue_final_message is set but the final message has no text to continue!"
                )
        else:
            final_text = content
            last["content"] = content + CONTINUE_MARK
        return [*conversation[:-1], last], final_text


def _cut_at_mark(text: str, final_text: str) -> str:
    mark = CONTINUE_MARK.strip()
    if final_text.strip() not in text or mark not in text:
        raise BadRequest(
            "continue_final_message is set but the final message does not appear in the chat after applying "
            "the chat template! This can happen if the chat template deletes portions of the final message."
        )
    position = text.rindex(mark)
    if text[position : position + len(CONTINUE_MARK)] == CONTINUE_MARK:
        return text[:position]
    return text[:position].rstrip()


def _reason(error: BaseException) -> str:
    """The message of the innermost template error, else of the error itself."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        if isinstance(current, jinja2.TemplateError):
            return str(current)
        seen.add(id(current))
        current = current.__cause__ or current.__context__
    return f"the chat template failed on this request: {type(error).__name__}: {error}"


class TemplateCache:
    """Compiled templates by source: the model's own, and a bounded number that requests brought."""

    def __init__(
        self, *, seconds: float, max_chars: int, capacity: int, guard: SpecialGuard | None = None
    ) -> None:
        self._guard = guard
        self._seconds = seconds
        self._max_chars = max_chars
        self._capacity = capacity
        self._compiled: OrderedDict[str, ChatTemplate] = OrderedDict()

    def get(self, source: str) -> ChatTemplate:
        """Raises BadRequest when the template does not compile."""
        found = self._compiled.get(source)
        if found is None:
            try:
                found = ChatTemplate(
                    source, seconds=self._seconds, max_chars=self._max_chars, guard=self._guard
                )
            except (BudgetExceeded, RecursionError) as error:
                raise BadRequest(f"the chat template is too large to compile: {error}") from error
            except Exception as error:  # Jinja's own complaints, and Python's about the code that Jinja makes
                raise BadRequest(f"the chat template does not compile: {error}") from error
            self._compiled[source] = found
            while len(self._compiled) > self._capacity:
                self._compiled.popitem(last=False)
        return found
