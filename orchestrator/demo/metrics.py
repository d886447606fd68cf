"""Reading single values off an engine's ``/metrics`` page."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families


def read_totals(base_url: str) -> dict[str, float]:
    """Sample name to the sum over its labels."""
    response = httpx.get(f"{base_url}/metrics", timeout=5.0)
    response.raise_for_status()
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals
