"""What an operator decides about rendering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ContentFormat = Literal["string", "openai"]


@dataclass(frozen=True, kw_only=True)
class RenderSettings:
    """Flags of the same names as vLLM's, and the bounds on what one request may cost."""

    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    enable_auto_tool_choice: bool = False
    exclude_tools_when_tool_choice_none: bool = False
    tool_strict_level: Literal["auto", "function", "parameter"] = "auto"
    chat_template_content_format: Literal["auto"] | ContentFormat = "auto"
    trust_request_mm_kwargs: bool = False
    trust_request_chat_template: bool = False
    default_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    system_start_date: str | None = None
    """The date that gpt-oss is told instead of today's."""
    escape_user_specials: bool = False
    """Special tokens come from the template alone; their spelling in messages is text."""
    strict_history: bool = False
    """Refuse malformed tool arguments in the history instead of reading them as ``{}``."""

    max_logprobs: int = 20
    """-1: as many as the vocabulary has."""
    max_stop_strings: int = 4
    max_choices: int = 16384
    max_prompts: int = 1024
    max_template_seconds: float = 10.0
    """CPU time of one template."""
    max_template_chars: int = 32 * 1024 * 1024
    """Length of any text that a template builds."""
    request_templates: int = 32
    """Compiled request templates kept."""
    continuation_renders: int = 24
    """Renders that may be spent on finding the message in which a refused continuation differs."""
    prompt_cache_bytes: int = 64 * 1024 * 1024
    """Memory for token IDs of parts of earlier prompts; 0 for none."""

    @property
    def tool_parser(self) -> str | None:
        """The tool parser in effect: as in vLLM, it takes both flags."""
        return self.tool_call_parser if self.enable_auto_tool_choice else None
