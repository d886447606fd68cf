#!/usr/bin/env python3
"""Write docs/diagrams.md: packages from their imports, a request's hops from the tables of its machine.

Run: python scripts/diagrams.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from orchestrator.core.request_table import (  # noqa: E402
    INITIAL,
    TERMINAL,
    TRANSITIONS,
    Effect,
    Event,
    Step,
)
from orchestrator.hops.generate import GENERATE  # noqa: E402
from orchestrator.hops.render import PATHS  # noqa: E402

PAGE = ROOT / "docs" / "diagrams.md"
ROOTS = ("render_tier", "orchestrator")
MESSAGES = "render_tier.protocol"

HEAD = """# Diagrams

Drawn from the code by `scripts/diagrams.py`; what they show is told in [architecture.md](architecture.md).
That of a run's states is in [request-machine.md](request-machine.md).
"""

PACKAGES = """## Packages

An arrow says that modules of one import modules of the other. Left out are arrows that follow from others,
those to `render_tier.protocol`, the messages, which most import, and single modules beside the packages.
"""

HOPS = """## A request of four hops

One answer, streamed, without a failure: each step is a cell of the request machine, and the notes are its
states.
"""

PATH: Sequence[Event] = (
    Event.RENDERED,
    Event.PREFILLED,
    Event.DECODE_ADMITTED,
    Event.FIRST_TOKEN,
    Event.VISIBLE,
    Event.DECODE_ENDED,
    Event.FLUSHED,
)
"""The events of such a request."""

WHO = ("client", "orchestrator", "render tier", "prefill engine", "decode engine")

TOLD: Mapping[Event | Effect, str] = {
    Effect.START_RENDER: f"O->>R: POST {PATHS['chat']}/render",
    Event.RENDERED: "R-->>O: token IDs, sampling parameters",
    Effect.START_PREFILL: f"O->>P: POST {GENERATE}, max_tokens 1",
    Event.PREFILLED: "P-->>O: kv_transfer_params",
    Effect.HOLD_KV: "Note over P: holds the KV under a lease",
    Effect.START_DECODE: f"O->>D: POST {GENERATE}, with kv_transfer_params",
    Event.FIRST_TOKEN: "P-->>D: KV\n    D-->>O: first token IDs",
    Effect.KV_CONSUMED: "Note over P: the lease has ended",
    Event.VISIBLE: f"O->>R: POST {PATHS['chat']}/derender\n    R-->>O: text\n    O-->>C: first chunk",
    Event.DECODE_ENDED: "D-->>O: last token IDs",
    Effect.FLUSH: "O->>R: what is left to derender",
    Event.FLUSHED: "R-->>O: last text",
    Effect.COMPLETE: "O-->>C: [DONE]",
}
"""What passes between whom. An effect that is not here asks nobody."""


def package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def packages_of(graph: grimp.ImportGraph) -> list[str]:
    return sorted(name for root in ROOTS for name in graph.find_children(root) if graph.find_children(name))


def imports(graph: grimp.ImportGraph) -> set[tuple[str, str]]:
    """Of packages: those of which modules of the first import modules of the second."""
    packages = set(packages_of(graph))
    pairs = {
        (package_of(module), package_of(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    }
    return {(a, b) for a, b in pairs if a != b and {a, b} <= packages}


def reachable(start: str, arrows: set[tuple[str, str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        here = waiting.pop()
        for source, target in arrows:
            if source == here and target not in found:
                found.add(target)
                waiting.append(target)
    return found


def reduced(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Without those that others imply."""
    return {(a, b) for a, b in arrows if b not in reachable(a, arrows - {(a, b)})}


def packages() -> str:
    graph = grimp.build_graph(*ROOTS, cache_dir=None)
    arrows, names = imports(graph), packages_of(graph)
    lines = ["```mermaid", "flowchart TD"]
    for root in ROOTS:
        lines.append(f"    subgraph {root}")
        lines += [
            f"        {name}[{last}]" for name in names for up, _, last in [name.partition(".")] if up == root
        ]
        lines.append("    end")
    lines += [
        f"    {a} --> {b}" for a, b in sorted(reduced({pair for pair in arrows if MESSAGES not in pair}))
    ]
    return "\n".join([PACKAGES, *lines, "```"])


def steps() -> Iterator[tuple[Event, Step]]:
    """The cells that the request goes through. Raises KeyError where the machine knows no such way."""
    step = INITIAL
    for event in PATH:
        step = TRANSITIONS[step.state][event]
        yield event, step
    assert step.state in TERMINAL


def hops() -> str:
    lines = ["```mermaid", "sequenceDiagram"]
    names = {
        "C": "client",
        "O": "orchestrator",
        "R": "render tier",
        "P": "prefill engine",
        "D": "decode engine",
    }
    lines += [f"    participant {short} as {name}" for short, name in names.items()]
    lines.append(f"    C->>O: POST {PATHS['chat']}")
    lines.append(f"    Note over O: {INITIAL.state.value}")
    lines += [f"    {TOLD[effect]}" for effect in INITIAL.effects]
    for event, step in steps():
        if event in TOLD:
            lines.append(f"    {TOLD[event]}")
        lines.append(f"    Note over O: {step.state.value}")
        lines += [f"    {TOLD[effect]}" for effect in step.effects if effect in TOLD]
    return "\n".join([HOPS, *lines, "```"])


def page() -> str:
    return "\n".join([HEAD, packages(), "", hops()]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
