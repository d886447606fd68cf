"""How each API that clients speak words its answers: streams, whole bodies and errors.

Derender writes what the model said; here it is framed, given what only the orchestrator knows (ids, times,
cached tokens), ended, or broken off. One file for each family of APIs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from orchestrator.core.dialects.anthropic import Anthropic
from orchestrator.core.dialects.dialect import Counted, Dialect, StreamEnd, UnreadableAnswer
from orchestrator.core.dialects.openai import OpenAI
from orchestrator.core.dialects.responses import Responses
from orchestrator.core.dialects.tokens import Tokens

DIALECTS: Final[Mapping[str, Dialect]] = {
    "chat": OpenAI("chatcmpl-", "chat.completion.chunk"),
    "completions": OpenAI("cmpl-", "text_completion"),
    "messages": Anthropic(),
    "responses": Responses(),
    "generate": Tokens(),
}
"""By endpoint, for what is said before there is a request."""


def dialect_of(endpoint: str) -> Dialect:
    """For one request: streams of events remember what they have said, or have still to say."""
    if endpoint == "responses":
        return Responses()
    return Anthropic() if endpoint == "messages" else DIALECTS[endpoint]


__all__ = ["DIALECTS", "Counted", "Dialect", "StreamEnd", "UnreadableAnswer", "dialect_of"]
