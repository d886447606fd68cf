"""What Qwen3 writes: thinking, and calls of its tools. With a character of four bytes, which tokens share."""

from __future__ import annotations

from typing import Any

THINK = "<think>\nHm — 𓂀.\n</think>\n\n"
ARGUMENTS = '{"x": "a 𓂀 b"}'
RESPONSES_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {"type": "custom", "name": "note"},
    {
        "type": "namespace",
        "name": "crm",
        "description": "Customers",
        "tools": [{"type": "function", "name": "find"}],
    },
]
"""A tool of each kind, as Responses requests have them."""


def call(name: str = "f", arguments: str = ARGUMENTS) -> str:
    """A call in the tags of the family (hermes)."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


CALL = call()
