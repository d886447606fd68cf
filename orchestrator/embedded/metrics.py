"""Prometheus metrics of an engine: vLLM's names where vLLM has the metric, ``embedded:`` for our own."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from orchestrator.embedded.engine import Engine
from orchestrator.embedded.nixl_memory import NixlMemory


class EngineCollector(Collector):
    """Reads the engine's own counters when scraped."""

    def __init__(self, engine: Engine, model: str, nixl: NixlMemory | None) -> None:
        self._nixl = nixl
        self._engine = engine
        self._model = model

    def collect(self) -> Iterator[Metric]:
        gauges, totals = self._engine.gauges(), self._engine.totals
        yield self._gauge("vllm:num_requests_running", "Requests that own KV blocks.", gauges.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests in the queue.", gauges.waiting)
        yield self._gauge(
            "vllm:kv_cache_usage_perc", "KV blocks in use, 0 to 1.", gauges.blocks_used / gauges.blocks_total
        )
        yield self._gauge("embedded:kv_blocks_used", "KV blocks in use.", gauges.blocks_used)
        yield self._gauge("embedded:kv_blocks", "KV blocks in all.", gauges.blocks_total)
        yield self._gauge(
            "embedded:leases_held", "Prefilled prompts kept for a decode engine.", gauges.leases
        )
        yield self._gauge("embedded:leased_blocks", "KV blocks under a lease.", gauges.leased_blocks)
        yield self._counter("embedded:leases_granted", "Leases granted.", gauges.leases_granted)
        yield self._counter("embedded:leases_consumed", "Leases pulled or given up.", gauges.leases_consumed)
        yield self._counter("embedded:leases_expired", "Leases that ended unused.", gauges.leases_expired)
        computed, pulled = totals.prompt_tokens_computed, totals.prompt_tokens_pulled
        yield self._counter("vllm:prompt_tokens", "Prompt tokens taken in.", computed + pulled)
        by_source = CounterMetricFamily(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by origin of their KV.",
            labels=["model_name", "source"],
        )
        by_source.add_metric([self._model, "local_compute"], computed)
        by_source.add_metric([self._model, "external_kv_transfer"], pulled)
        yield by_source
        yield self._counter("vllm:generation_tokens", "Tokens generated.", totals.generated_tokens)
        finished = CounterMetricFamily(
            "vllm:request_success",
            "Sequences that ended, by reason.",
            labels=["model_name", "finished_reason"],
        )
        for reason, count in sorted(totals.finished.items()):
            finished.add_metric([self._model, reason], count)
        yield finished
        yield self._counter(
            "embedded:kv_bytes_sent", "KV bytes sent to decode engines.", totals.kv_bytes_sent
        )
        yield self._counter(
            "embedded:kv_bytes_received", "KV bytes pulled from prefill engines.", totals.kv_bytes_received
        )
        if self._nixl is not None:
            yield self._counter(
                "embedded:nixl_bytes_read",
                "Those of the received that NIXL read from prefill engines' memory.",
                self._nixl.bytes_read,
            )
        yield self._counter("embedded:kv_transfers", "KV transfers received.", totals.transfers_received)
        yield self._counter(
            "embedded:kv_pull_seconds", "Time that received KV took to arrive.", totals.transfer_seconds
        )
        yield self._counter("embedded:kv_transfers_failed", "KV pulls that failed.", totals.transfers_failed)
        yield self._counter("embedded:steps", "Model steps.", totals.steps)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family


def registry(engine: Engine, model: str, nixl: NixlMemory | None) -> CollectorRegistry:
    """``nixl``: the engine's memory on NIXL, if it uses that."""
    result = CollectorRegistry()
    result.register(EngineCollector(engine, model, nixl))
    return result


def exposition(metrics: CollectorRegistry) -> bytes:
    return generate_latest(metrics)
