"""Microseconds of CPU per output token of every offered parser family, beside vLLM's `parse_delta`.

One output of each family is repeated until it has 256, 4,096 and 32,768 tokens: reasoning, an answer, and one
call whose long string argument takes half of them. It is fed one token and four tokens a chunk. vLLM runs in
its own environment and process, with a parser kept for the whole stream (no replay), on the same token IDs.

Ours reads token IDs, so detokenizing is counted always. vLLM's parsers read text: "parse" is `parse_delta`
alone, given texts made before; "server" adds the decode stream of its coupled server, which is what the same
work costs there. The aim, three times less, is for the ratio to "parse" at 4,096 tokens, which compares more
of ours with less of theirs. Growth is the exponent between 256 and 32,768 tokens (4,096 where vLLM's cost per
token makes more pointless). Snapshots are taken at 64 places of the longest output, 20 times each.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.measure import machine, median, print_table, ratio
from render_tier.core.formats import REASONING_NAMES, TOOL_NAMES
from render_tier.core.machine import Machine
from tests.conftest import MODELS
from tests.families import ours, values
from tests.families.catalogue import FAMILIES
from tests.families.tokenization import CorpusTokenizer, tokenizer_of
from tests.families.writers import Call, Writer
from tests.vllm.parsers.runner import VllmRunner

LENGTHS = (256, 4096, 32768)
CHUNKS = (1, 4)
SNAPSHOTS = 64
SNAPSHOT_REPEATS = 20
PROSE = values.words(Random(7), 40) + ". "


@dataclass(frozen=True)
class Timing:
    tokens: int
    microseconds: float
    """Per token, the best of the repeats."""


def offered() -> list[str]:
    """Families of the catalogue whose parsers have a table and whose tokenizer the tests can read."""
    return [
        name
        for name, writer in FAMILIES.items()
        if writer.reasoning_parser in (None, *REASONING_NAMES) and writer.tool_parser in (None, *TOOL_NAMES)
    ]


def output(writer: Writer, tokenizer: CorpusTokenizer, length: int) -> dict[str, Any]:
    """A case of about ``length`` tokens: a quarter reasoning, a quarter answer, half one argument."""
    per_prose = len(tokenizer.encode(PROSE))
    opening = writer.openings[0]
    body = PROSE * max(1, length // 2 // per_prose)
    call = Call("write_note", {"title": "log", "body": body})
    quarter = (PROSE * max(1, length // 4 // per_prose)).strip()
    calls = writer.calls(Random(3), [call], list(values.TOOLS))
    if writer.tool_parser == "openai":
        text = (
            f"<|channel|>analysis<|message|>{quarter}<|end|><|start|>assistant<|channel|>commentary<|message|>"
            f"{quarter}<|end|><|start|>assistant{calls}"
        )
    else:
        start, end = writer.think
        reasoning = f"{'' if opening.reasoning == 'open' else start}{quarter}{end}"
        answer = quarter + writer.before_calls if writer.text_with_calls else ""
        text = (reasoning if opening.reasoning in ("open", "self", "maybe") else "") + answer + calls
    return {
        "format": {"tool_parser": writer.tool_parser, "reasoning_parser": writer.reasoning_parser},
        "tokenizer": writer.tokenizer,
        "standin_tokenizer": None if writer.tokenizer else {"base": writer.base, "added": list(writer.added)},
        "prompt_tail": opening.tail,
        "tools": list(values.TOOLS),
        "tool_choice": "auto",
        "chat_template_kwargs": opening.kwargs,
        "output_text": text,
    }


def timed(run: Callable[[], object], tokens: int, repeats: int) -> Timing:
    best = math.inf
    for _ in range(repeats):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return Timing(tokens, best * 1e6 / tokens)


def ours_timed(case: dict[str, Any], chunk: int, repeats: int) -> Timing:
    tokenizer = tokenizer_of(case)
    ids = tokenizer.encode(case["output_text"])
    chunks = [ids[at : at + chunk] for at in range(0, len(ids), chunk)]

    def run() -> None:
        machine = ours.machine_of(case, tokenizer)
        for piece in chunks:
            machine.feed(piece)
        machine.finish()

    return timed(run, len(ids), repeats)


def theirs_timed(
    runner: VllmRunner, case: dict[str, Any], chunk: int, repeats: int, *, detokenize: bool
) -> Timing | None:
    timing = {"chunk": chunk, "repeat": repeats, "detokenize": detokenize}
    timing = runner.ask({"case": case, "batch": False, "timing": timing})["timing"]
    return None if "exception" in timing else Timing(timing["tokens"], min(timing["us_per_token"]))


def exponent(short: Timing, long: Timing) -> float:
    """Of the growth of the whole output's cost with its length: 1 is linear."""
    cost = (long.microseconds * long.tokens) / (short.microseconds * short.tokens)
    return math.log(cost) / math.log(long.tokens / short.tokens)


def snapshots(case: dict[str, Any]) -> tuple[float, int, float]:
    """Median and largest size in bytes, and median microseconds of one snapshot and restore."""
    tokenizer = tokenizer_of(case)
    ids = tokenizer.encode(case["output_text"])
    machine = ours.machine_of(case, tokenizer)
    grammar, options = ours.grammar_of_case(case, tokenizer), ours.options_of(case)
    step = max(1, len(ids) // SNAPSHOTS)
    sizes, times = [], []
    for at in range(0, len(ids), step):
        machine.feed(ids[at : at + step])
        data = machine.snapshot()
        sizes.append(len(data))
        start = time.process_time()
        for _ in range(SNAPSHOT_REPEATS):
            machine = Machine.restore(grammar, options, machine.snapshot())
        times.append((time.process_time() - start) * 1e6 / SNAPSHOT_REPEATS)
    return median(sizes), max(sizes), median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", help="default: every offered family")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="*", default=list(LENGTHS))
    parser.add_argument("--peer-limit", type=int, default=4096, help="vLLM runs up to this many tokens")
    options = parser.parse_args()
    print(machine())
    rows, sizes = [], []
    with tempfile.TemporaryDirectory() as work, VllmRunner(MODELS, Path(work)) as runner:
        for name in options.families or offered():
            writer = FAMILIES[name]
            for chunk in CHUNKS:
                cells = [name, str(chunk)]
                mine, theirs = [], []
                for length in options.lengths:
                    case = output(writer, tokenizer_of(output_case(writer)), length)
                    repeats = options.repeats if length <= 4096 else 1
                    mine.append(ours_timed(case, chunk, repeats))
                    if length <= options.peer_limit:
                        theirs.append(theirs_timed(runner, case, chunk, repeats, detokenize=False))
                        server = theirs_timed(runner, case, chunk, repeats, detokenize=True)
                    else:
                        server = None
                    parse = theirs[-1] if length <= options.peer_limit else None
                    cells.append(f"{mine[-1].microseconds:.2f}")
                    for peer in (parse, server):
                        cells.append(f"{peer.microseconds:.1f}" if peer else "-")
                        cells.append(ratio(peer.microseconds, mine[-1].microseconds) if peer else "-")
                cells.append(f"{exponent(mine[0], mine[-1]):.3f}")
                known = [t for t in theirs if t is not None]
                cells.append(f"{exponent(known[0], known[-1]):.2f}" if len(known) > 1 else "-")
                rows.append(cells)
                print(" ".join(cells), file=sys.stderr, flush=True)  # the peer may take minutes a family
            size, largest, cost = snapshots(
                output(writer, tokenizer_of(output_case(writer)), options.lengths[-1])
            )
            sizes.append([name, f"{size:.0f}", str(largest), f"{cost:.1f}"])
    header = ["family", "tokens a chunk"]
    for length in options.lengths:
        header += [f"{length}: ours", "vLLM parse", "ratio", "vLLM server", "ratio"]
    print_table("CPU microseconds per token", [*header, "growth ours", "growth vLLM"], rows)
    print_table("Snapshots", ["family", "median bytes", "largest", "snapshot + restore, us"], sizes)


def output_case(writer: Writer) -> dict[str, Any]:
    """The part of a case that names its tokenizer."""
    return {
        "tokenizer": writer.tokenizer,
        "standin_tokenizer": None if writer.tokenizer else {"base": writer.base, "added": list(writer.added)},
    }


if __name__ == "__main__":
    main()
