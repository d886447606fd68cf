#!/usr/bin/env python3
"""Write the Grafana board of both services and the engines: ``grafana_board.py > deploy/grafana/board.json``.

A panel here is its title, what it says, its unit and its queries; everything else is alike. Three fit in a
row of 24 columns. ``$__rate_interval`` is Grafana's own: at least four scrapes. Counters of what has not
happened yet have no series: their panels say "No data" while all is well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT = 8, 8
FAILED = 'outcome=~"server_error|unavailable|timeout"'
RUNBOOKS = "docs/runbooks.md"


@dataclass(frozen=True)
class Panel:
    title: str
    about: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    """PromQL, and the legend of its series."""
    kind: str = "timeseries"
    stacked: bool = False
    runbook: str = ""
    """The section that says what to do."""


def rate(metric: str, by: str = "") -> str:
    inner = f"rate({metric}[$__rate_interval])"
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def quantiles(metric: str, *levels: float, by: str = "", where: str = "") -> tuple[tuple[str, str], ...]:
    """The legend names the level, and the label where there is one."""
    groups, label = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    buckets = rate(f"{metric}_bucket{where}", groups)
    return tuple((f"histogram_quantile({level}, {buckets})", f"{label}p{level * 100:g}") for level in levels)


def mean(metric: str, by: str, where: str = "") -> tuple[tuple[str, str], ...]:
    query = f"{rate(f'{metric}_sum{where}', by)} / {rate(f'{metric}_count{where}', by)}"
    return ((query, f"{{{{{by}}}}}"),)


def share(part: str, whole: str, by: str, legend: str) -> tuple[str, str]:
    return f"{rate(part, by)} / {rate(whole, by)}", legend


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "What clients see",
        (
            Panel(
                "Requests",
                "How they ended.",
                "reqps",
                ((rate("pd_requests_total", "outcome"), "{{outcome}}"),),
                stacked=True,
            ),
            Panel(
                "Error budget left",
                "Of one failed request in a thousand, over the time shown.",
                "percentunit",
                (
                    (
                        f"1 - (sum(increase(pd_requests_total{{{FAILED}}}[$__range])) or vector(0))"
                        " / sum(increase(pd_requests_total[$__range])) / 0.001",
                        "left",
                    ),
                ),
                kind="stat",
                runbook="error-budget",
            ),
            Panel(
                "Burn rate of the error budget",
                "1 uses it up in 30 days; pages at 14.4 over an hour.",
                "none",
                tuple(
                    (
                        f"(sum(rate(pd_requests_total{{{FAILED}}}[{window}])) or vector(0))"
                        f" / sum(rate(pd_requests_total[{window}])) / 0.001",
                        window,
                    )
                    for window in ("5m", "1h", "6h")
                ),
                runbook="error-budget",
            ),
            Panel(
                "Time to first token",
                "From the request's head to the first output for the client.",
                "s",
                quantiles("pd_hop_seconds", 0.5, 0.9, 0.99, where='{hop="ttft"}'),
                runbook="first-token",
            ),
            Panel(
                "Where the first token's time goes",
                "Mean of each hop; decode_first_token holds the KV transfer, and what is missing is waiting.",
                "s",
                mean(
                    "pd_hop_seconds",
                    "hop",
                    '{hop=~"render|encode|prefill|decode_first_token|first_derender"}',
                ),
                stacked=True,
                runbook="first-token",
            ),
            Panel(
                "The slow end of each hop",
                "",
                "s",
                quantiles("pd_hop_seconds", 0.99, by="hop", where='{hop!="total"}'),
                runbook="first-token",
            ),
            Panel(
                "Time between tokens",
                "Between two chunks of a decode stream.",
                "s",
                quantiles("pd_inter_token_seconds", 0.5, 0.9, 0.99),
                runbook="gaps-between-tokens",
            ),
            Panel(
                "Tokens",
                "Of prompts and of answers.",
                "cps",
                ((rate("pd_tokens_total", "kind"), "{{kind}}"),),
            ),
            Panel(
                "Streams",
                "Requests and runs under way.",
                "none",
                (("sum(pd_in_flight)", "requests"), ("sum(pd_runs)", "runs")),
            ),
        ),
    ),
    (
        "Waiting",
        (
            Panel(
                "Queue wait by gate",
                "Time until a place: too few members of that role.",
                "s",
                quantiles("pd_queue_seconds", 0.9, 0.99, by="gate"),
                runbook="queues",
            ),
            Panel(
                "Waiting now",
                "",
                "none",
                (("sum by (gate) (pd_gate_waiting)", "{{gate}}"),),
                runbook="queues",
            ),
            Panel(
                "Refused",
                "429 and 503, by gate and cause.",
                "reqps",
                ((rate("pd_refusals_total", "gate, cause"), "{{gate}} {{cause}}"),),
                runbook="queues",
            ),
        ),
    ),
    (
        "KV",
        (
            Panel(
                "KV held for runs",
                "What does not come down again is stranded.",
                "none",
                (("sum by (role) (pd_member_leases)", "{{role}}"),),
                runbook="stranded-kv",
            ),
            Panel(
                "Stranded KV",
                "Prompt tokens left to a prefill engine's lease, by reason.",
                "cps",
                ((rate("pd_stranded_kv_tokens_total", "reason"), "{{reason}}"),),
                runbook="stranded-kv",
            ),
            Panel(
                "Decode on its own",
                "Prompts that decode computed; prefills that were unusable.",
                "reqps",
                (
                    (rate("pd_prefill_recomputes_total"), "computed by decode"),
                    (rate("pd_unusable_prefills_total"), "unusable prefills"),
                ),
                runbook="decode-computes-prompts",
            ),
        ),
    ),
    (
        "Caches",
        (
            Panel(
                "Render: prompt characters found",
                "Share whose IDs were kept from earlier prompts.",
                "percentunit",
                (
                    (
                        f"""{rate('render_tier_prompt_cache_chars_total{result="hit"}')}"""
                        f" / {rate('render_tier_prompt_cache_chars_total')}",
                        "hit ratio",
                    ),
                ),
                runbook="caches",
            ),
            Panel(
                "Engines: beliefs that held",
                "Share of prompts believed, or reported, cached that were.",
                "percentunit",
                (
                    share(
                        'pd_cache_predictions_total{result="held"}',
                        "pd_cache_predictions_total",
                        "role",
                        "{{role}} believed",
                    ),
                    share(
                        'pd_kv_index_predictions_total{result="held"}',
                        "pd_kv_index_predictions_total",
                        "role",
                        "{{role}} reported",
                    ),
                ),
                runbook="caches",
            ),
            Panel(
                "KV of earlier turns",
                "Whether a prefill could go on from a kept turn, and why not.",
                "reqps",
                ((rate("pd_turn_reuse_total", "result"), "{{result}}"),),
            ),
        ),
    ),
    (
        "Members",
        (
            Panel(
                "Members that get work",
                "",
                "none",
                (("sum by (role) (pd_member_healthy * pd_member_admitted)", "{{role}}"),),
                runbook="members-down",
            ),
            Panel(
                "Kept out, or avoided",
                "Members that differ, by field; members whose breaker is open.",
                "none",
                (
                    (
                        'max by (role, member, field) (pd_member_difference{keeps_out="true"})',
                        "{{role}} {{member}} {{field}}",
                    ),
                    ("max by (role, member) (pd_member_breaker_open)", "{{role}} {{member}} breaker"),
                ),
                runbook="drift",
            ),
            Panel(
                "Legs by member",
                "",
                "none",
                (("sum by (role, member) (pd_member_active)", "{{role}} {{member}}"),),
            ),
            Panel(
                "Failed legs",
                "Most are repaired.",
                "reqps",
                ((rate("pd_hop_errors_total", "hop, kind"), "{{hop}} {{kind}}"),),
                runbook="failing-hops",
            ),
            Panel(
                "Repairs",
                "Legs sent again, and streams that went on elsewhere.",
                "reqps",
                (
                    (rate("pd_retries_total", "hop"), "{{hop}} again"),
                    (rate("pd_continuations_total"), "continued"),
                ),
                runbook="failing-hops",
            ),
            Panel(
                "Sources that could not be read",
                "",
                "reqps",
                ((rate("pd_membership_failures_total", "source"), "{{source}}"),),
                runbook="membership-sources",
            ),
        ),
    ),
    (
        "Render tier",
        (
            Panel(
                "Requests by route",
                "",
                "reqps",
                ((rate("render_tier_request_seconds_count", "route"), "{{route}}"),),
            ),
            Panel("Time by route", "", "s", quantiles("render_tier_request_seconds", 0.99, by="route")),
            Panel(
                "Threads short",
                "Seconds waited in a second: requests that wait, on average. 0: scale in.",
                "none",
                ((rate("render_tier_queue_wait_seconds_sum", "pool"), "{{pool}}"),),
                runbook="render-tiers-are-short",
            ),
            Panel(
                "Prompt tokens rendered",
                "Work that arrives; scale on it.",
                "cps",
                ((rate("render_tier_prompt_tokens_total"), "tokens"),),
            ),
            Panel(
                "Sessions",
                "",
                "none",
                (("sum(render_tier_sessions)", "sessions"), ("sum(render_tier_session_streams)", "streams")),
            ),
            Panel(
                "Refused by render tiers",
                "",
                "reqps",
                ((rate("render_tier_refused_total", "reason"), "{{reason}}"),),
                runbook="render-tiers-are-short",
            ),
        ),
    ),
    (
        "Engines",
        (
            Panel(
                "Sequences",
                "Running and waiting, by engine.",
                "none",
                (
                    ("sum by (instance) (vllm:num_requests_running)", "{{instance}} running"),
                    ("sum by (instance) (vllm:num_requests_waiting)", "{{instance}} waiting"),
                ),
            ),
            Panel(
                "KV blocks in use",
                "Of a prefill engine with nothing running: held KV.",
                "percentunit",
                (("max by (instance) (vllm:kv_cache_usage_perc)", "{{instance}}"),),
                runbook="stranded-kv",
            ),
            Panel(
                "Where prompts' KV comes from",
                "local_compute on a decode engine: it computed the prompt.",
                "cps",
                (
                    (
                        rate("vllm:prompt_tokens_by_source_total", "instance, source"),
                        "{{instance}} {{source}}",
                    ),
                ),
                stacked=True,
                runbook="decode-computes-prompts",
            ),
        ),
    ),
)


def board() -> dict[str, Any]:
    """Grafana's own shape of a dashboard (schema version 39 and up: Grafana 11)."""
    return {
        "uid": "disagg-frontend",
        "title": "Prefill, decode and render",
        "tags": ["llm"],
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"type": "datasource", "name": "source", "label": "Prometheus", "query": "prometheus"}]
        },
        "panels": list(panels()),
    }


def panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, row in ROWS:
        number += 1
        place = {"h": 1, "w": 24, "x": 0, "y": top}
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        top += 1
        for column, panel in enumerate(row):
            number += 1
            down, across = divmod(column, 24 // WIDTH)
            place = {"h": HEIGHT, "w": WIDTH, "x": across * WIDTH, "y": top + down * HEIGHT}
            yield {"id": number, "gridPos": place} | shown(panel)
        top += HEIGHT * -(-len(row) * WIDTH // 24)


def shown(panel: Panel) -> dict[str, Any]:
    targets: list[dict[str, Any]] = [
        {"refId": chr(ord("A") + place), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        for place, (query, legend) in enumerate(panel.queries)
    ]
    about = [panel.about, f"Runbook: {RUNBOOKS}#{panel.runbook}" if panel.runbook else ""]
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.kind == "stat":
        targets[0]["instant"] = True
        steps = [
            {"value": None, "color": "red"},
            {"value": 0, "color": "orange"},
            {"value": 0.5, "color": "green"},
        ]
        defaults |= {"max": 1, "thresholds": {"mode": "absolute", "steps": steps}}
        options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background"}
    else:
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        fill = 30 if panel.stacked else 0
        defaults |= {"min": 0, "custom": {"fillOpacity": fill, "stacking": stacking}}
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": "\n\n".join(filter(None, about)),
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


if __name__ == "__main__":
    json.dump(board(), sys.stdout, indent=1)
    sys.stdout.write("\n")
