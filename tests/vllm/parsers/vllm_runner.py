"""Run vLLM's own parsers on raw model outputs: JSON lines in on stdin, JSON lines out on stdout.

This file is executed by the interpreter of the vLLM environment, in a process of its own; it imports nothing
of this project. `runner.py` beside it is the client.

Request (one object a line)::

    {"id": any, "case": CASE, "batch": bool = true, "streams": [CHUNKING, ...],
     "timing": {"chunk": int, "repeat": int, "detokenize": bool = false}}
    {"id": any, "case": CASE, "encode": [text, ...]}         # token IDs only

CASE has the fields of the conformance corpus: `format` {tool_parser, reasoning_parser}, `tokenizer` or
`standin_tokenizer` {base, added}, `prompt_tail`, `tools`, `tool_choice`, `chat_template_kwargs`,
`output_text`, and optionally `finish_reason` (the engine's; "stop" when absent).
CHUNKING is a list of token counts (the last chunk takes the rest) or an integer n (n tokens a chunk; 0: all).

Reply::

    {"id": any, "batch": MESSAGE, "streams": [MESSAGE, ...],
     "timing": {"us_per_token": [...], "tokens": int}}

MESSAGE is {reasoning, content, tool_calls: [{name, arguments, id, index?}], finish_reason} or
{"exception": text}. The finish_reason rule is the corpus README's: `tool_calls` when a call is returned with
tool_choice auto or required and the engine stopped, except that batch `required` says so without a call too.
"""

from __future__ import annotations

import argparse
import base64
import codecs
import copy
import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MISTRAL_V13_SPECIALS = [
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]",
]  # fmt: skip


def byte_of_unicode() -> dict[str, int]:
    """The GPT-2 byte-to-character table, inverted."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in plain}
    extra = 0
    for b in range(256):
        if b not in plain:
            table[chr(256 + extra)] = b
            extra += 1
    return table


class Tokenizers:
    """Loads and caches the corpus's tokenizers, stand-ins included."""

    def __init__(self, directory: Path, work: Path) -> None:
        self.directory = directory
        self.work = work
        self.cache: dict[str, Any] = {}

    def get(self, case: dict[str, Any]) -> Any:
        standin = case.get("standin_tokenizer")
        base = standin["base"] if standin else case["tokenizer"]
        added = tuple(standin["added"]) if standin else ()
        key = json.dumps([base, added])
        if key not in self.cache:
            self.cache[key] = self.load(base, added)
        return self.cache[key]

    def load(self, base: str, added: tuple[str, ...]) -> Any:
        if base.startswith("tekken"):
            return self.mistral(base)
        if base == "gptoss":
            self.harmony_vocabulary()
        from tokenizers import AddedToken
        from transformers import TokenizersBackend

        from vllm.tokenizers.hf import get_cached_tokenizer

        tokenizer = TokenizersBackend.from_pretrained(self.directory / base)
        vocabulary = tokenizer.get_vocab()
        tokens = [AddedToken(t, special=False, normalized=False) for t in added if t not in vocabulary]
        tokenizer.add_tokens(tokens)
        return get_cached_tokenizer(tokenizer)

    def mistral(self, base: str) -> Any:
        from vllm.tokenizers.mistral import MistralTokenizer

        data = self.directory / "tekken_240911" / "tekken.json"
        if base == "tekken_v13":
            model = json.loads(data.read_text(encoding="utf-8"))
            model["config"]["version"] = "v13"
            model["special_tokens"] = [
                {"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(self.mistral_specials())
            ]
            directory = self.work / "tekken_v13"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "tekken.json").write_text(json.dumps(model), encoding="utf-8")
        else:
            directory = self.work / "tekken_240911"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "tekken.json").write_bytes(data.read_bytes())
        # Every parser has a pattern for each of 1,000 special tokens: more than the library keeps compiled.
        import regex._main

        regex._main._MAXCACHE = 1 << 14
        return MistralTokenizer.from_pretrained(str(directory))

    @staticmethod
    def mistral_specials() -> list[str]:
        """The old special tokens at their ranks, then those of v13 from rank 20 on (the corpus's order)."""
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        old = [str(t["token_str"].value) for t in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
        first = [t for t in old if t not in MISTRAL_V13_SPECIALS]
        while len(first) < 20:
            first.append(f"<SPECIAL_{len(first)}>")
        return first + MISTRAL_V13_SPECIALS

    def harmony_vocabulary(self) -> None:
        """Write the tiktoken file that the Harmony library wants to download, from the tokenizer at hand."""
        target = self.work / "tiktoken" / "o200k_base.tiktoken"
        if not target.exists():
            model = json.loads((self.directory / "gptoss" / "tokenizer.json").read_text(encoding="utf-8"))
            table = byte_of_unicode()
            ranks = sorted((i, t) for t, i in model["model"]["vocab"].items() if i < 199998)
            lines = [f"{base64.b64encode(bytes(table[c] for c in t)).decode()} {i}\n" for i, t in ranks]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("".join(lines), encoding="ascii")
        os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(target.parent)


def encode(tokenizer: Any, text: str) -> list[int]:
    """IDs of a text in which special tokens are written as text."""
    if getattr(tokenizer, "IS_MISTRAL_TOKENIZER", False):
        ids: list[int] = []
        specials = sorted(tokenizer.all_special_tokens, key=len, reverse=True)
        table = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        for piece in re.split("(" + "|".join(re.escape(t) for t in specials) + ")", text):
            if piece in table:
                ids.append(table[piece])
            elif piece:
                ids.extend(tokenizer.tokenizer.encode(piece, bos=False, eos=False))
        return ids
    return list(tokenizer.encode(text, add_special_tokens=False))


def pieces(tokenizer: Any, prompt_ids: list[int], ids: list[int]) -> list[str]:
    """The text each token adds, by vLLM's incremental detokenizer.

    For Mistral's tokenizer, whose token strings are lossy, by the bytes of its tokens.
    """
    from vllm.tokenizers.detokenizer_utils import convert_prompt_ids_to_tokens, detokenize_incrementally

    if getattr(tokenizer, "IS_MISTRAL_TOKENIZER", False):
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        inner = tokenizer.tokenizer
        return [decoder.decode(inner.id_to_byte_piece(i, SpecialTokenPolicy.KEEP)) for i in ids]

    tokens, prefix, read = convert_prompt_ids_to_tokens(tokenizer, prompt_ids, False)
    out = []
    all_ids = list(prompt_ids)
    for token in ids:
        all_ids.append(token)
        new, text, prefix, read = detokenize_incrementally(
            tokenizer=tokenizer,
            all_input_ids=all_ids,
            prev_tokens=tokens,
            prefix_offset=prefix,
            read_offset=read,
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
        )
        tokens.extend(new)
        out.append(text)
    return out


def fast_pieces(tokenizer: Any, ids: list[int]) -> list[str]:
    """As `pieces`, by the library's decode stream: for timings, where exact texts do not matter."""
    if getattr(tokenizer, "IS_MISTRAL_TOKENIZER", False):
        return pieces(tokenizer, [], ids)
    return list(map(decode_step(tokenizer), ids))


def decode_step(tokenizer: Any) -> Callable[[int], str]:
    """A new decode stream: the text that the next token adds."""
    from tokenizers.decoders import DecodeStream

    if getattr(tokenizer, "IS_MISTRAL_TOKENIZER", False):
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        keep, inner = SpecialTokenPolicy.KEEP, tokenizer.tokenizer
        return lambda token: decoder.decode(inner.id_to_byte_piece(token, keep))
    stream = DecodeStream(skip_special_tokens=False)
    return lambda token: stream.step(tokenizer._tokenizer, token) or ""


def request_of(case: dict[str, Any]) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    if case.get("tools") is not None:
        body["tools"] = copy.deepcopy(case["tools"])
    if case.get("tool_choice") is not None:
        body["tool_choice"] = case["tool_choice"]
    if case.get("chat_template_kwargs"):
        body["chat_template_kwargs"] = dict(case["chat_template_kwargs"])
    return ChatCompletionRequest(**body)


def parser_of(case: dict[str, Any], tokenizer: Any, request: Any) -> Any:
    from vllm.parser import ParserManager

    fmt = case["format"]
    cls = ParserManager.get_parser(
        tool_parser_name=fmt["tool_parser"],
        reasoning_parser_name=fmt["reasoning_parser"],
        enable_auto_tools=True,
        model_name="m",
        is_harmony=fmt["tool_parser"] == "openai" or fmt["reasoning_parser"] == "openai_gptoss",
    )
    if cls is None:
        return None
    return cls(tokenizer, request.tools, chat_template_kwargs=dict(case.get("chat_template_kwargs") or {}))


def finish(case: dict[str, Any], calls: list[Any], *, batch: bool) -> str:
    engine = case.get("finish_reason") or "stop"
    choice = case.get("tool_choice")
    if isinstance(choice, dict) or choice == "none":
        return engine
    if batch and choice == "required" and engine == "stop":
        return "tool_calls"
    return "tool_calls" if calls and engine == "stop" else engine


def batch(case: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    request = request_of(case)
    parser = parser_of(case, tokenizer, request)
    text = case["output_text"]
    reasoning, content, calls = parser.parse(
        text, request, enable_auto_tools=True, model_output_token_ids=encode(tokenizer, text)
    )
    if isinstance(case.get("tool_choice"), dict) or case.get("tool_choice") == "required":
        content = content or ""
    if request.tool_choice in (None, "none") and not (request.tools and request.tool_choice is None):
        calls = None  # as the chat endpoint: the Harmony parser alone returns calls here
    out = [{"name": c.name, "arguments": c.arguments, "id": c.id} for c in calls or []]
    return {
        "reasoning": reasoning,
        "content": content,
        "tool_calls": out,
        "finish_reason": finish(case, out, batch=True),
    }


def chunks(count: int, chunking: int | list[int]) -> list[tuple[int, int]]:
    if isinstance(chunking, int):
        sizes = [chunking or max(count, 1)] * (-(-count // (chunking or max(count, 1))))
    else:
        sizes = [*chunking, count]
    spans, at = [], 0
    for size in sizes:
        end = min(count, at + size)
        spans.append((at, end))
        at = end
        if at >= count:
            break
    return spans or [(0, 0)]


def stream(case: dict[str, Any], tokenizer: Any, chunking: int | list[int]) -> dict[str, Any]:
    request = request_of(case)
    parser = parser_of(case, tokenizer, request)
    prompt = encode(tokenizer, case.get("prompt_tail") or "")
    ids = encode(tokenizer, case["output_text"])
    texts = pieces(tokenizer, prompt, ids)
    reasoning, content = "", ""
    calls: dict[int, dict[str, Any]] = {}
    spans = chunks(len(ids), chunking)
    for i, (a, b) in enumerate(spans):
        delta = parser.parse_delta(
            "".join(texts[a:b]), ids[a:b], request, prompt_token_ids=prompt, finished=i == len(spans) - 1
        )
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for c in delta.tool_calls or []:
            call = calls.setdefault(
                c.index, {"index": c.index, "name": "", "arguments": "", "id": None, "names": 0}
            )
            function = c.function
            if c.id:
                call["id"] = c.id
            if function is None:
                continue
            name = function.get("name") if isinstance(function, dict) else function.name
            arguments = function.get("arguments") if isinstance(function, dict) else function.arguments
            if name:
                call["name"] += name
                call["names"] += 1
            call["arguments"] += arguments or ""
    out = list(calls.values())
    return {
        "reasoning": reasoning,
        "content": content,
        "tool_calls": out,
        "finish_reason": finish(case, out, batch=False),
    }


def timing(case: dict[str, Any], tokenizer: Any, chunk: int, repeat: int, detokenize: bool) -> dict[str, Any]:
    """CPU microseconds a token of `parse_delta` on a live parser, for every repeat. With ``detokenize`` the
    decode stream of vLLM's coupled server is counted too, otherwise the texts are there before."""
    prompt = encode(tokenizer, case.get("prompt_tail") or "")
    ids = encode(tokenizer, case["output_text"])
    texts = fast_pieces(tokenizer, ids)
    spans = chunks(len(ids), chunk)
    deltas = [("".join(texts[a:b]), ids[a:b]) for a, b in spans]
    last = len(deltas) - 1
    results = []
    for _ in range(repeat):
        request = request_of(case)
        parser = parser_of(case, tokenizer, request)
        start = time.process_time()
        step = decode_step(tokenizer) if detokenize else None
        for i, (text, piece) in enumerate(deltas):
            if step is not None:
                text = "".join([step(token) for token in piece])
            parser.parse_delta(text, list(piece), request, prompt_token_ids=prompt, finished=i == last)
        results.append((time.process_time() - start) * 1e6 / max(1, len(ids)))
    return {"us_per_token": results, "tokens": len(ids)}


def guarded(function: Any, *args: Any) -> dict[str, Any]:
    try:
        return function(*args)
    except Exception as error:  # vLLM's parsers raise anything; the reply says so
        return {"exception": f"{type(error).__name__}: {error}"}


def answer(message: dict[str, Any], tokenizers: Tokenizers) -> dict[str, Any]:
    case = message["case"]
    tokenizer = tokenizers.get(case)
    reply: dict[str, Any] = {"id": message.get("id")}
    if "encode" in message:
        reply["ids"] = [encode(tokenizer, text) for text in message["encode"]]
        return reply
    if message.get("batch", True):
        reply["batch"] = guarded(batch, case, tokenizer)
    if message.get("streams"):
        reply["streams"] = [guarded(stream, case, tokenizer, c) for c in message["streams"]]
    if message.get("timing"):
        t = message["timing"]
        reply["timing"] = guarded(
            timing, case, tokenizer, t["chunk"], t["repeat"], t.get("detokenize", False)
        )
    return reply


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument(
        "--tokenizers", type=Path, required=True, help="directory with NAME/tokenizer.json"
    )
    arguments.add_argument("--work", type=Path, required=True, help="directory for derived files")
    options = arguments.parse_args()
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever vLLM prints goes to stderr
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    import logging

    logging.disable(logging.CRITICAL)
    tokenizers = Tokenizers(options.tokenizers, options.work)
    for line in sys.stdin:
        message = json.loads(line)
        try:
            reply = answer(message, tokenizers)
        except Exception as error:
            reply = {"id": message.get("id"), "error": f"{type(error).__name__}: {error}"}
        output.write(json.dumps(reply, ensure_ascii=True) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
