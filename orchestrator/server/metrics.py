"""Prometheus metrics of one orchestrator process, in a registry of its own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import fields
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from orchestrator.core.admission import Gate
from orchestrator.core.recent import Recent
from orchestrator.core.timing import Timing
from orchestrator.pool.pool import Pool
from orchestrator.server.fleet import Followed
from orchestrator.server.integrity import Integrity

SPAN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip


class PerToken(Collector):
    """A histogram without labels and locks, for what is observed once a token in the one thread of the event
    loop: a tenth of the library's own cost."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry) -> None:
        self._name, self._documentation = name, documentation
        self._counts = [0] * (len(SPAN_BUCKETS) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(SPAN_BUCKETS, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[Metric]:
        names = [*map(floatToGoString, SPAN_BUCKETS), "+Inf"]
        buckets = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=self._sum)


class _StateCollector(Collector):
    """Reads the live counters when scraped."""

    def __init__(self, integrity: Integrity, pools: Iterable[Pool]) -> None:
        self._integrity = integrity
        self._pools = list(pools)
        self.gates: Collection[Gate] = ()
        self.sources: Collection[Followed] = ()

    def collect(self) -> Iterator[Metric]:
        for counter in fields(self._integrity):
            yield GaugeMetricFamily(
                f"pd_{counter.name}",
                "Zero when idle.",
                value=getattr(self._integrity, counter.name),
            )
        healthy = GaugeMetricFamily("pd_member_healthy", "Last probe succeeded.", labels=["role", "member"])
        active = GaugeMetricFamily("pd_member_active", "Legs in flight.", labels=["role", "member"])
        for pool in self._pools:
            for member in pool.members:
                healthy.add_metric([pool.role, member.url], 1.0 if member.probed else 0.0)
                active.add_metric([pool.role, member.url], member.active)
        yield healthy
        yield active
        yield from self._standing()
        yield from self._kv_indexes()
        waiting = GaugeMetricFamily("pd_gate_waiting", "Waits for a place.", labels=["gate"])
        taken = GaugeMetricFamily("pd_gate_active", "Places taken.", labels=["gate"])
        for gate in self.gates:
            waiting.add_metric([gate.name], gate.waiting)
            taken.add_metric([gate.name], gate.active)
        yield waiting
        yield taken

    def _standing(self) -> Iterator[Metric]:
        """Who is let in, and what keeps the others out."""
        labels = ["role", "member"]
        admitted = GaugeMetricFamily("pd_member_admitted", "New work may go to it.", labels=labels)
        avoided = GaugeMetricFamily(
            "pd_member_breaker_open", "It failed several times in a row.", labels=labels
        )
        leases = GaugeMetricFamily("pd_member_leases", "KV it holds for runs of ours.", labels=labels)
        differs = GaugeMetricFamily(
            "pd_member_difference",
            "1 for each fact in which a member differs from what is needed.",
            labels=[*labels, "field", "keeps_out"],
        )
        for pool in self._pools:
            for member in pool.members:
                admitted.add_metric([pool.role, member.url], float(member.welcome))
                avoided.add_metric([pool.role, member.url], float(pool.avoids(member)))
                leases.add_metric([pool.role, member.url], member.leases)
                for difference in member.differences:
                    keeps_out = "true" if difference.keeps_out else "false"
                    differs.add_metric([pool.role, member.url, difference.field, keeps_out], 1.0)
        failures = CounterMetricFamily(
            "pd_membership_failures", "A membership source could not be read.", labels=["source"]
        )
        for followed in self.sources:
            failures.add_metric([followed.source.name], followed.failures)
        yield from (admitted, avoided, leases, differs, failures)

    def _kv_indexes(self) -> Iterator[Metric]:
        labels = ["role", "member"]
        blocks = GaugeMetricFamily("pd_kv_index_blocks", "Blocks a member says it holds.", labels=labels)
        trusted = GaugeMetricFamily("pd_kv_index_trusted", "It is scored by them.", labels=labels)
        losses = CounterMetricFamily(
            "pd_kv_index_losses",
            "How often they were lost or stopped being believed.",
            labels=[*labels, "reason"],
        )
        for pool in self._pools:
            for member in pool.members:
                if (reports := member.reports) is None:
                    continue
                blocks.add_metric([pool.role, member.url], len(reports.index))
                trusted.add_metric([pool.role, member.url], float(reports.trusted))
                for reason, count in reports.losses.items():
                    losses.add_metric([pool.role, member.url, reason], count)
        yield blocks
        yield trusted
        yield losses


class Metrics:
    def __init__(self, integrity: Integrity, pools: Iterable[Pool], recent: int) -> None:
        """``recent``: of so many requests the latencies are kept."""
        self.recent = {name: Recent(recent) for name in (*Timing(0.0).seconds(), "inter_token")}
        """Seconds by span, of the last requests that had it."""
        self.registry = registry = CollectorRegistry()
        self._state = _StateCollector(integrity, pools)
        registry.register(self._state)
        self.requests = Counter(
            "pd_requests", "Client requests by outcome.", ["endpoint", "outcome"], registry=registry
        )
        self.key_refusals = Counter(
            "pd_key_refusals",
            "Requests refused for their API key, by cause.",
            ["cause"],
            registry=registry,
        )
        self.hop_seconds = Histogram(
            "pd_hop_seconds",
            "Spans of a request; decode_first_token holds KV transfer and the first decode step,"
            " first_derender is all of the derendering where the answer is no stream.",
            ["hop"],
            buckets=SPAN_BUCKETS,
            registry=registry,
        )
        # Looking a label up costs as much as counting.
        self._spans = {name: self.hop_seconds.labels(name) for name in Timing(0.0).seconds()}
        self.inter_token = PerToken(
            "pd_inter_token_seconds", "Time between two chunks of a decode stream.", registry
        )
        self.derender_calls = PerToken("pd_derender_seconds", "One derender call.", registry)
        self.hop_errors = Counter("pd_hop_errors", "Failed legs by kind.", ["hop", "kind"], registry=registry)
        self.retries = Counter("pd_retries", "Legs sent again.", ["hop"], registry=registry)
        self.continuations = Counter(
            "pd_continuations", "Streams that went on elsewhere after visible output.", registry=registry
        )
        self.encodes = Counter(
            "pd_encoded_images",
            "Images of prompts where there are encode members, by what became of them.",
            ["result"],
            registry=registry,
        )
        self.media_items = Counter(
            "pd_media_items",
            "Images of legs, by how they were sent: whole, or named to an engine that has been given them.",
            ["form"],
            registry=registry,
        )
        self.kept_images = Gauge(
            "pd_kept_image_bytes", "Images kept so that render need not send them again.", registry=registry
        )
        self.media_resends = Counter(
            "pd_media_resends",
            "Legs sent again with whole images, as their engine may have lacked one that was named.",
            ["hop"],
            registry=registry,
        )
        self.recomputes = Counter(
            "pd_prefill_recomputes",
            "Runs whose prompt decode computed because prefill gave nothing usable.",
            registry=registry,
        )
        self.unusable_prefills = Counter(
            "pd_unusable_prefills", "Prefill answers without usable params.", registry=registry
        )
        self.stranded = Counter(
            "pd_stranded_kv", "Held KV left to the engine's lease.", ["reason"], registry=registry
        )
        self.stranded_tokens = Counter(
            "pd_stranded_kv_tokens", "Prompt tokens of stranded KV.", ["reason"], registry=registry
        )
        self.stranded_bytes = Counter(
            "pd_stranded_kv_bytes",
            "The same in bytes; counted when lease.kv_bytes_per_token is set.",
            ["reason"],
            registry=registry,
        )
        self.freed = Counter(
            "pd_freed_kv", "Held KV of given-up runs that a one-token decode pulled.", registry=registry
        )
        self.kept_turns = Counter(
            "pd_kept_turns",
            "Decodes that left KV for the next turn, by result.",
            ["result"],
            registry=registry,
        )
        self.turn_reuse = Counter(
            "pd_turn_reuse",
            "Prefills that asked for a kept turn's KV, by result.",
            ["result"],
            registry=registry,
        )
        self.conversations = Counter(
            "pd_conversations",
            "Chats that name the turn they go on from, by what became of it.",
            ["result"],
            registry=registry,
        )
        self.store_failures = Counter(
            "pd_store_failures",
            "Operations of the store that failed, or were left out because one has just failed.",
            ["operation"],
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "pd_queue_seconds",
            "Time until a place at a gate.",
            ["gate"],
            buckets=SPAN_BUCKETS,
            registry=registry,
        )
        self.refusals = Counter(
            "pd_refusals", "Not admitted, by gate and cause.", ["gate", "cause"], registry=registry
        )
        self.predictions = Counter(
            "pd_cache_predictions",
            "Prompts believed cached on a member, by whether it reported so.",
            ["role", "result"],
            registry=registry,
        )
        self.kv_predictions = Counter(
            "pd_kv_index_predictions",
            "Prompts looked up in a member's reported cache, by whether it then found so much.",
            ["role", "result"],
            registry=registry,
        )
        self.aborts = Counter("pd_aborts", "Aborts sent to engines.", ["hop"], registry=registry)
        self.tokens = Counter("pd_tokens", "Tokens of prompts and of answers.", ["kind"], registry=registry)

    def watch_gates(self, gates: Collection[Gate]) -> None:
        self._state.gates = gates

    def watch_sources(self, sources: Collection[Followed]) -> None:
        self._state.sources = sources

    def observe(self, timing: Timing) -> None:
        for name, seconds in timing.seconds().items():
            if seconds is not None:
                self._spans[name].observe(seconds)
                self.recent[name].add(seconds)
        if timing.gaps.count:
            self.recent["inter_token"].add(timing.gaps.total / timing.gaps.count)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)

    def told(self, _about: str) -> bytes:
        """The same for another worker, which asks for all of it."""
        return self.exposition()
