"""The answer that a 135M-parameter model cannot write: reasoning, then a tool call, as Qwen3 token IDs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

QUESTION = "Is it a good evening for a walk along the harbour in Oslo?"

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather and the forecast of the next hours.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "hours": {"type": "integer"},
                "units": {"type": "string", "enum": ["metric", "imperial"]},
            },
            "required": ["city"],
        },
    },
}

ANSWER = (
    "<think>\nThe user asks about a walk tonight. I do not know the weather, "
    "but there is a tool for it. A few hours ahead will do. 🌦\n</think>\n\n"
    "Let me look at the forecast first.\n"
    '<tool_call>\n{"name": "get_weather", "arguments": '
    '{"city": "Oslo", "hours": 4, "units": "metric"}}\n</tool_call><|im_end|>'
)


def write_script(tokenizer_dir: Path, path: Path, interval_ms: float) -> None:
    """Write a script file that answers any prompt with `ANSWER`, one token every ``interval_ms``."""
    tokenizer = Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    token_ids = tokenizer.encode(ANSWER, add_special_tokens=False).ids
    path.write_text(json.dumps([{"token_ids": token_ids, "interval_ms": interval_ms}]))
