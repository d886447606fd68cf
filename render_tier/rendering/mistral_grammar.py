"""The grammar that holds a Mistral model to its own format, in the Lark of mistral-common and llguidance.

It covers reasoning, text, calls and JSON at once, so it stands in for every other constraint that it can
express.
"""

from __future__ import annotations

from typing import Any

from render_tier.model.files import ModelLoadError
from render_tier.model.mistral_tokenizer import MistralTokenizer
from render_tier.protocol.chat import ChatCompletionRequest, Tool
from render_tier.protocol.validation import invalid
from render_tier.rendering.constraints import decoded_schema
from render_tier.rendering.structural_tags import Json

ANY_JSON: Json = {"anyOf": [{"type": "object"}, {"type": "array"}]}
FIRST_VERSION = 11
OTHERS = ("regex", "choice", "grammar", "whitespace_pattern", "structural_tag")
"""What structured outputs can ask for and this grammar cannot express."""


class MistralGrammar:
    """Thread-safe."""

    @staticmethod
    def exists(tokenizer: MistralTokenizer) -> bool:
        return tokenizer.is_tekken and tokenizer.version >= FIRST_VERSION

    def __init__(self, tokenizer: MistralTokenizer) -> None:
        """Raises ModelLoadError when llguidance is not installed."""
        from mistral_common.guidance.grammar_factory import GrammarFactory
        from mistral_common.protocol.instruct.tool_calls import Tool as LibraryTool
        from mistral_common.protocol.instruct.tool_calls import ToolChoiceEnum

        try:
            self._factory = GrammarFactory(tokenizer.library)
        except ImportError as error:
            raise ModelLoadError(
                f"tool calls of this model need llguidance: pip install 'disagg-frontend[mistral]' ({error})"
            ) from error
        self._template = self._factory.select_jinja_template()
        self._library_tool, self._choices = LibraryTool, ToolChoiceEnum

    def covers(self, request: ChatCompletionRequest) -> bool:
        """Whether it can express what the request asks for."""
        given, response = request.structured_outputs, request.response_format
        return (given is None or all(getattr(given, name) is None for name in OTHERS)) and (
            response is None or response.type != "structural_tag"
        )

    def of(self, request: ChatCompletionRequest, constraint: Json | None) -> Json:
        """The constraint of a request that it covers, ``constraint`` being the request's own. Raises
        BadRequest."""
        schema, choice = _asked_schema(constraint), request.tool_choice
        if choice == "none" and schema is not None:
            return {"grammar": self._factory.get_lark_for_json_schema(self._template, schema)}
        name = request.forced_function
        demanded = name is not None or choice == "required"
        offered = [tool for tool in request.tools or () if name in (None, tool.function.name)]
        tools = [self._tool(tool, demanded) for tool in offered]
        grammar = self._factory.get_lark_from_jinja(
            template=self._template,
            mode=self._choices("required" if demanded else "none" if choice == "none" else "auto"),
            tools=tools or None,
            json_schema=schema,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            json_only=False,
            force_tool_names=name is not None,
        )
        return {"grammar": grammar}

    def _tool(self, tool: Tool, demanded: bool) -> Any:
        """A demanded call is held to its schema, whether the tool says strict or not."""
        form = tool.template_form()
        if demanded:
            form["function"]["strict"] = True
        try:
            return self._library_tool.from_openai(form)
        except ValueError as error:
            raise invalid(str(error), "tools") from None


def _asked_schema(constraint: Json | None) -> Json | None:
    """The JSON that the answer may be, or None when it may be any text."""
    if constraint is None:
        return None
    schema = decoded_schema(constraint["json"]) if "json" in constraint else None
    return schema if isinstance(schema, dict) and schema else ANY_JSON
