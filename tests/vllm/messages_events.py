"""Run in vLLM's environment: chat answers through the converters of vLLM's own Messages endpoint.

    python messages_events.py < cases

One case a line: `{"chunks": [chat chunk, ...], "whole": chat completion}`. One answer a line:
`{"events": [...], "message": ...}`, as vLLM's endpoint puts them on the wire.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any


async def answered(case: dict[str, Any]) -> dict[str, Any]:
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

    async def chat() -> AsyncIterator[str]:
        for chunk in case["chunks"]:
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"

    converters: Any = AnthropicServingMessages.__new__(AnthropicServingMessages)
    frames = [frame async for frame in converters.message_stream_converter(chat())]
    events = [json.loads(frame.partition("data: ")[2]) for frame in frames]
    message = converters.messages_full_converter(ChatCompletionResponse.model_validate(case["whole"]))
    return {"events": events, "message": message.model_dump(exclude_none=True)}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(asyncio.run(answered(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
