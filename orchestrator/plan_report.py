"""The plan as one HTML page with plots in SVG: nothing is loaded from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from orchestrator.core.capacity import Plan, Planner
from orchestrator.core.recent import quantile

WIDTH, HEIGHT, LEFT, BOTTOM = 440, 240, 56, 34
BINS = 24
BEYOND = 4
"""Engines to show beside the number that is planned."""
FAR = 4.0
STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --line: #888; --one: #1f5fa8; --aim: #b3261e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #161616; --line: #777; --one: #7db3f0; --aim: #ff8a80; }
}
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem; color: var(--ink); background: var(--paper); }
figure { display: inline-block; margin: 0 1.5rem 1.5rem 0; }
figcaption { max-width: 440px; }
svg { font: 11px system-ui, sans-serif; }
svg text { fill: var(--ink); } .axis { stroke: var(--line); } .bar { fill: var(--one); }
.line { fill: none; stroke: var(--one); stroke-width: 2; } .aim { stroke: var(--aim); stroke-dasharray: 5 4; }
.chosen { fill: var(--aim); }
td { padding: 0.15rem 1.2rem 0.15rem 0; }
"""

Points = Sequence[tuple[float, float]]
Ticks = Sequence[tuple[float, str]]
"""Places as a share of the axis, and their text."""


def report(planner: Planner, plan: Plan) -> str:
    aims, asked = planner.aims, planner.workload.asked
    share = f"p{aims.share * 100:g}"
    figures = [
        histogram("Prompt tokens", [one.prompt for one in asked]),
        histogram("Prompt tokens that prefill computes", [one.uncached for one in asked]),
        histogram("Output tokens", [one.output for one in asked]),
        curve(
            f"Time to first token, {share}, ms, by prefill engines; dashed: the aim",
            [
                (number, planner.prefill(number, plan.decode.gap).first_token * 1e3)
                for number in around(plan.prefill.engines)
            ],
            aims.first_token * 1e3,
            plan.prefill.engines,
        ),
        curve(
            f"Time between tokens, {share}, ms, by decode engines; dashed: the aim",
            [(number, planner.decode(number).gap * 1e3) for number in around(plan.decode.engines)],
            aims.gap * 1e3,
            plan.decode.engines,
        ),
        curve(
            f"KV on each decode engine, {share}, GiB, by decode engines",
            [(number, planner.decode(number).kv_bytes / 2**30) for number in around(plan.decode.engines)],
            planner.limits.kv_bytes / 2**30,
            plan.decode.engines,
        ),
    ]
    sizes = sorted(planner.kv.of(one.prompt) for one in asked)
    rows = {
        "Requests a second": f"{planner.workload.rate:.4g}",
        "Prefill engines": f"{plan.prefill.engines}, {plan.prefill.queue.utilisation:.0%} busy",
        "Decode engines": f"{plan.decode.engines}, {plan.decode.crowd.mean:.1f} sequences each on average",
        "KV of a request": f"{plan.kv_bytes_per_request / 2**20:.1f} MiB on average,"
        f" {share} {quantile(sizes, aims.share) / 2**20:.1f} MiB",
        "Fabric": f"{plan.fabric * 8 / 1e9:.3g} Gbit/s in all, {plan.link * 8 / 1e9:.3g} Gbit/s on a link",
        "Render cores": f"{plan.render_cores_to_have}, {plan.render_cores:.2f} of them busy",
    }
    table = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows.items()
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Plan</title><style>{STYLE}</style>'
        f"<h1>Plan</h1><table>{table}</table>{''.join(figures)}"
        "<p>Formulas and their limits: docs/planning.md.</p></html>\n"
    )


def around(engines: int) -> range:
    return range(max(1, engines - BEYOND), engines + BEYOND + 1)


def histogram(title: str, values: Sequence[int]) -> str:
    """On a logarithmic axis."""
    low, high = math.log(min(values)), math.log(max(values) + 1)
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, int((math.log(value) - low) / (high - low) * BINS))] += 1
    plot_width, plot_height = WIDTH - LEFT, HEIGHT - BOTTOM
    each, tall = plot_width / BINS, plot_height / max(counts)
    bars = "".join(
        f'<rect class="bar" x="{LEFT + at * each:.1f}" y="{plot_height - count * tall:.1f}"'
        f' width="{each - 1:.1f}" height="{count * tall:.1f}"/>'
        for at, count in enumerate(counts)
    )
    ticks = [(share, f"{math.exp(low + share * (high - low)):.0f}") for share in (0.0, 0.5, 1.0)]
    return figure(title, bars, ticks, [(0.0, "0"), (1.0, f"{max(counts)}")])


def curve(title: str, points: Points, aim: float, chosen: int) -> str:
    """Points far above the chosen one and the aim are left out."""
    aimed = [aim] if math.isfinite(aim) else []
    most = FAR * max([y for x, y in points if x == chosen] + aimed)
    shown = [(x, y) for x, y in points if y <= most]
    left, right = points[0][0], points[-1][0]
    top = max([y for _, y in shown] + aimed) * 1.1
    plot_width, plot_height = WIDTH - LEFT, HEIGHT - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + (x - left) / (right - left) * plot_width, plot_height * (1 - y / top)

    line = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in shown)
    drawn = f'<polyline class="line" points="{line}"/>'
    for x, y in shown:
        across, down = place(x, y)
        kind = "chosen" if x == chosen else "bar"
        drawn += f'<circle class="{kind}" cx="{across:.1f}" cy="{down:.1f}" r="4"/>'
    if aimed:
        down = place(left, aim)[1]
        drawn += f'<line class="aim" x1="{LEFT}" x2="{WIDTH}" y1="{down:.1f}" y2="{down:.1f}"/>'
    ticks = [((x - left) / (right - left), f"{x:.0f}") for x, _ in points]
    return figure(title, drawn, ticks, [(0.0, "0"), (0.5, f"{top / 2:.3g}"), (1.0, f"{top:.3g}")])


def figure(
    title: str, drawn: str, across: Sequence[tuple[float, str]], up: Sequence[tuple[float, str]]
) -> str:
    plot_width, plot_height = WIDTH - LEFT, HEIGHT - BOTTOM
    axes = (
        f'<line class="axis" x1="{LEFT}" x2="{LEFT}" y1="0" y2="{plot_height}"/>'
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{plot_height}" y2="{plot_height}"/>'
    )
    texts = "".join(
        f'<text x="{LEFT + at * plot_width:.1f}" y="{plot_height + 18}" text-anchor="middle">{text}</text>'
        for at, text in across
    )
    texts += "".join(
        f'<text x="{LEFT - 6}" y="{plot_height * (1 - at) + 4:.1f}" text-anchor="end">{text}</text>'
        for at, text in up
    )
    box = f"0 -12 {WIDTH + 16} {HEIGHT + 12}"
    return (
        f'<figure><svg role="img" aria-label="{escape(title)}" width="{WIDTH + 16}" height="{HEIGHT + 12}"'
        f' viewBox="{box}">{axes}{drawn}{texts}</svg><figcaption>{escape(title)}</figcaption></figure>'
    )
