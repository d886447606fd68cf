"""What the demo tells after a chat: where the time went, which tokens were seen, how much KV was moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from orchestrator.demo.chat import ChatRecord

SHOWN_IDS = 12
"""Token IDs printed at each end of a long list."""


@dataclass(frozen=True)
class Transfer:
    """KV that the decode engine pulled during one chat, from its own metrics."""

    bytes: float
    seconds: float


def token_list(ids: Sequence[int]) -> str:
    """All IDs, or both ends of a long list with the number left out between them."""
    if len(ids) <= 2 * SHOWN_IDS:
        return " ".join(map(str, ids))
    head = " ".join(map(str, ids[:SHOWN_IDS]))
    tail = " ".join(map(str, ids[-SHOWN_IDS:]))
    return f"{head} … {len(ids) - 2 * SHOWN_IDS} more … {tail}"


def hop_rows(record: ChatRecord, transfer: Transfer) -> list[tuple[str, str, str]]:
    """(what, value, who says so) in the order in which a request meets them."""
    timing = record.timing
    transfer_ms = transfer.seconds * 1000
    first_decode = timing["decode_first_token_ms"] - transfer_ms
    gaps = timing["itl_ms"]
    return [
        ("render", _ms(timing["render_ms"]), "orchestrator"),
        ("prefill", _ms(timing["prefill_ms"]), "orchestrator"),
        ("KV transfer", _ms(transfer_ms), "decode engine's metrics"),
        ("first decode step", _ms(first_decode), "rest of the decode hop's first token"),
        ("first derender", _ms(timing["first_derender_ms"]), "orchestrator"),
        ("TTFT", _ms(timing["ttft_ms"]), "until the client's first output"),
        ("ITL", f"{_ms(gaps['mean'])} mean, {_ms(gaps['max'])} max", f"{gaps['count']} gaps"),
        ("total", _ms(timing["total_ms"]), ""),
        ("KV moved", f"{transfer.bytes / 2**20:.2f} MiB", "decode engine's metrics"),
    ]


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"


def print_title(console: Console, title: str) -> None:
    """Below a line, not in it: a line cuts what is longer than it is."""
    console.rule()
    console.print(title, style="bold", markup=False)


def print_report(console: Console, record: ChatRecord, transfer: Transfer) -> None:
    table = Table("hop", "time", "source", title="What happened", title_justify="left")
    for row in hop_rows(record, transfer):
        table.add_row(*row, style="bold" if row[0] == "TTFT" else None)
    console.print(table)
    usage = record.usage
    console.print(
        f"prompt {usage['prompt_tokens']} tokens, completion {usage['completion_tokens']} tokens, "
        f"finish_reason {record.finish_reason}"
    )
    console.print(f"prompt token IDs:  {token_list(record.prompt_token_ids)}", highlight=False)
    console.print(f"output token IDs:  {token_list(record.output_token_ids)}", highlight=False)


def print_message(console: Console, record: ChatRecord) -> None:
    """The three parts into which the parser has split the output."""
    table = Table("part of the message", "text", title="What the client received", title_justify="left")
    table.add_row("reasoning", record.reasoning.strip())
    table.add_row("content", record.content.strip())
    for index, call in sorted(record.tool_calls.items()):
        table.add_row(f"tool_calls[{index}]", f"{call['name']}({call['arguments']})")
    table.add_row("finish_reason", str(record.finish_reason))
    console.print(table)
