"""Write docs/request-machine.md from the tables of `orchestrator.core.request_table`.

Run: python scripts/request_machine_diagram.py
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.request_table import (
    ABORT_EARLY,
    FREE_HELD_KV,
    IMPOSSIBLE,
    INITIAL,
    TERMINAL,
    TRANSITIONS,
    Effect,
    Event,
    Row,
    State,
)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "request-machine.md"

HEAD = """# The life of a run

Generated from the tables in `orchestrator/core/request_table.py` by
`scripts/request_machine_diagram.py`; the theory of operation is that module's docstring. A *run* is one
answer choice of one prompt.
"""


def diagram() -> str:
    """One arrow for each pair of states, labelled with its events. Cells that change nothing are left out."""
    arrows: dict[tuple[State, State], list[Event]] = defaultdict(list)
    for table in (TRANSITIONS, FREE_HELD_KV):
        for state, row in table.items():
            for event, step in row.items():
                changes = step.state is not state or step.effects
                if changes and event not in arrows[state, step.state]:
                    arrows[state, step.state].append(event)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {INITIAL.state.value}"]
    for (source, target), events in arrows.items():
        label = ", ".join(event.value for event in events)
        lines.append(f"    {source.value} --> {target.value}: {label}")
    lines += [f"    {state.value} --> [*]" for state in State if state in TERMINAL]
    return "\n".join([*lines, "```"])


def rows(table: Mapping[State, Row]) -> str:
    lines = ["| state | event | next state | effects, in order |", "|---|---|---|---|"]
    for state, row in table.items():
        for event, step in row.items():
            effects = ", ".join(effect.value for effect in step.effects) or "–"
            target = step.state.value if step.state is not state or step.effects else "(stays)"
            lines.append(f"| {state.value} | {event.value} | {target} | {effects} |")
    return "\n".join(lines)


def impossible() -> str:
    lines = ["| state | events that cannot happen there |", "|---|---|"]
    for state, events in IMPOSSIBLE.items():
        lines.append(f"| {state.value} | {', '.join(event.value for event in Event if event in events)} |")
    return "\n".join(lines)


def glossary(kind: type[State] | type[Event] | type[Effect]) -> str:
    return ", ".join(f"`{member.value}`" for member in kind)


def page() -> str:
    sections = [
        HEAD,
        diagram(),
        f"\nStates: {glossary(State)}.\n\nEffects: {glossary(Effect)}.",
        "\n## Cells\n",
        rows(TRANSITIONS),
        '\n## Cells under `policy.held_kv = "free"`\n',
        rows(FREE_HELD_KV),
        '\n## Cells under `policy.abort_decode = "at_once"`\n',
        rows(ABORT_EARLY),
        "\n## Impossible\n",
        "Feeding one of these is a bug of the shell and raises `ImpossibleEvent`.\n",
        impossible(),
    ]
    return "\n".join(sections) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
