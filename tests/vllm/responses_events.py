"""vLLM's own writer of Responses events on given tokens: JSON lines in on stdin, JSON lines out on stdout.

This file is executed by the interpreter of the vLLM environment and imports nothing of this project.

    python responses_events.py TOKENIZER_DIRECTORY

A line in is {"request": a Responses request, "token_ids": [...], "prompt_token_ids": [...]}; the line out is
the list of events between ``response.in_progress`` and the last one, of a stream with one token a chunk, read
by the parsers qwen3 and hermes. The last token is an EOS, which has no text.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main(directory: str) -> None:
    from transformers import AutoTokenizer

    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.parser import ParserManager

    tokenizer = AutoTokenizer.from_pretrained(directory)
    parser = ParserManager.get_parser(
        tool_parser_name="hermes",
        reasoning_parser_name="qwen3",
        enable_auto_tools=True,
        model_name="qwen3",
        tokenizer=tokenizer,
    )
    for line in sys.stdin:
        case = json.loads(line)
        request = ResponsesRequest.model_validate(case["request"])
        reader = parser(tokenizer, request.tools, chat_template_kwargs={})
        print(json.dumps(events(tokenizer, reader, request, case)), flush=True)


def events(tokenizer: Any, reader: Any, request: Any, case: dict[str, Any]) -> list[Any]:
    from tokenizers.decoders import DecodeStream

    from vllm.entrypoints.openai.responses.streaming_events import (
        SimpleStreamingEventProcessor,
        _StateType,
        split_delta,
    )
    from vllm.entrypoints.serve.utils.tool_calls_utils import maybe_filter_parallel_tool_calls

    ids, prompt = case["token_ids"], case["prompt_token_ids"]
    reader.set_prompt_token_ids(prompt)
    writer = SimpleStreamingEventProcessor(tools=request.tools)
    made: list[Any] = []
    stream = DecodeStream(ids=prompt, skip_special_tokens=False)  # as vLLM's own detokenizer
    for place, token in enumerate(ids):
        text = stream.step(tokenizer._tokenizer, token) or ""
        last = place == len(ids) - 1
        delta = reader.parse_delta(
            delta_text="" if last else text,
            delta_token_ids=[token],
            request=request,
            prompt_token_ids=prompt,
            finished=last,
        )
        if not delta:
            continue
        for part in split_delta(maybe_filter_parallel_tool_calls(delta, request)):
            target, call = writer.resolve_target_state(part)
            if target == _StateType.NONE:
                continue
            if writer.needs_transition(target, call):
                made += writer.close_current()
                made += writer.open(target, call)
            made += writer.emit_delta(part, None, None)
    made += writer.close_current()
    return [event.model_dump(mode="json", by_alias=True) for event in made]


if __name__ == "__main__":
    main(sys.argv[1])
