"""What the render tier measures, in Prometheus' terms.

Labels are few and bounded: routes come from the route table, never from the request's path.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from render_tier.derendering import Derenderer
from render_tier.derendering.streams import Source
from render_tier.rendering.prompt_cache import Lookup
from render_tier.rendering.renderer import Renderer
from render_tier.server.shared_metrics import MULTIPROCESS_DIRECTORY

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TOKENS = (16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


@dataclass(frozen=True)
class Metrics:
    registry: CollectorRegistry
    requests: Counter
    duration: Histogram
    in_flight: Gauge
    refused: Counter
    prompt_tokens: Counter
    prompt_length: Histogram
    queue_wait: Histogram
    queue_depth: Gauge
    ready: Gauge
    info: Gauge
    tokenizer_engine: Gauge
    tokenizer_fallbacks: Counter
    prompt_cache_chars: Counter
    prompt_cache_bytes: Gauge
    images: Counter
    image_cache_bytes: Gauge
    image_memory_bytes: Gauge
    streams_found: Counter
    stream_cache_entries: Gauge
    stream_cache_bytes: Gauge
    contexts: Gauge
    context_bytes: Gauge
    sessions: Gauge
    session_streams: Gauge
    session_bytes: Gauge
    session_messages: Counter
    on_refresh: list[Callable[[], None]] = field(default_factory=list)
    """What brings values up to date that change with every token."""

    @property
    def shared(self) -> bool:
        """Whether several processes put their values together."""
        return MULTIPROCESS_DIRECTORY in os.environ

    def refresh(self) -> None:
        """Before values are read: by a scrape or, with several workers, by the scrape of another one."""
        for update in self.on_refresh:
            update()

    def exposition(self) -> bytes:
        """The text format; with several workers, the sum over all of them."""
        self.refresh()
        if not self.shared:
            return generate_latest(self.registry)
        from prometheus_client.multiprocess import MultiProcessCollector

        merged = CollectorRegistry()
        MultiProcessCollector(merged)  # type: ignore[no-untyped-call]
        return generate_latest(merged)


def build_metrics() -> Metrics:
    """A fresh set in a registry of its own."""
    registry = CollectorRegistry()

    def gauge(name: str, text: str) -> Gauge:
        return Gauge(f"render_tier_{name}", text, registry=registry, multiprocess_mode="livesum")

    return Metrics(
        registry=registry,
        requests=Counter(
            "render_tier_requests_total", "Answered requests.", ["route", "status"], registry=registry
        ),
        duration=Histogram(
            "render_tier_request_seconds",
            "From the request's head to the answer's last byte.",
            ["route"],
            buckets=SECONDS,
            registry=registry,
        ),
        in_flight=Gauge(
            "render_tier_in_flight",
            "Requests in progress.",
            registry=registry,
            multiprocess_mode="livesum",
        ),
        refused=Counter(
            "render_tier_refused_total", "Requests refused for load.", ["reason"], registry=registry
        ),
        prompt_tokens=Counter(
            "render_tier_prompt_tokens_total", "Rendered prompt tokens.", registry=registry
        ),
        prompt_length=Histogram(
            "render_tier_prompt_length_tokens",
            "Length of rendered prompts.",
            buckets=TOKENS,
            registry=registry,
        ),
        queue_wait=Histogram(
            "render_tier_queue_wait_seconds",
            "How long requests waited for a thread.",
            ["pool"],
            buckets=SECONDS,
            registry=registry,
        ),
        queue_depth=Gauge(
            "render_tier_queue_depth",
            "Requests that wait for a thread.",
            ["pool"],
            registry=registry,
            multiprocess_mode="livesum",
        ),
        ready=Gauge(
            "render_tier_ready",
            "1 once the model is loaded and warm.",
            registry=registry,
            multiprocess_mode="livemin",
        ),
        info=Gauge(
            "render_tier_info",
            "Version and model fingerprint.",
            ["version", "fingerprint"],
            registry=registry,
            multiprocess_mode="livemax",
        ),
        tokenizer_engine=Gauge(
            "render_tier_tokenizer_engine",
            "Processes that encode with this engine.",
            ["engine"],
            registry=registry,
            multiprocess_mode="livesum",
        ),
        tokenizer_fallbacks=Counter(
            "render_tier_tokenizer_fallbacks_total",
            "Uses of the slower engine: the fast one is unavailable or gives other IDs (once a process), or"
            " failed on a text.",
            ["reason"],
            registry=registry,
        ),
        prompt_cache_chars=Counter(
            "render_tier_prompt_cache_chars_total",
            "Characters of prompts by whether their IDs were kept from earlier prompts.",
            ["result"],
            registry=registry,
        ),
        prompt_cache_bytes=gauge("prompt_cache_bytes", "About what the IDs of earlier prompts take."),
        images=Counter(
            "render_tier_images_total",
            "Images of requests by how they were had: kept from earlier ones, processed, or refused.",
            ["result"],
            registry=registry,
        ),
        image_cache_bytes=gauge("image_cache_bytes", "What processed images that are kept take."),
        image_memory_bytes=gauge("image_memory_bytes", "About what images of requests in progress take."),
        streams_found=Counter(
            "render_tier_derender_streams_total",
            "Streams begun or continued, by where they were found: new, kept in the cache, restored from a"
            " state, or read again from vLLM's.",
            ["source"],
            registry=registry,
        ),
        stream_cache_entries=gauge("stream_cache_entries", "Streams kept between two chunks."),
        stream_cache_bytes=gauge("stream_cache_bytes", "About what those streams take."),
        contexts=gauge("contexts", "Requests whose derender context is kept."),
        context_bytes=gauge("context_bytes", "Size of those requests."),
        sessions=gauge("sessions", "Open sessions."),
        session_streams=gauge("session_streams", "Streams that sessions hold."),
        session_bytes=gauge("session_bytes", "About what those streams take."),
        session_messages=Counter(
            "render_tier_session_messages_total", "Messages answered in sessions.", registry=registry
        ),
    )


def observe_renderer(metrics: Metrics, renderer: Renderer) -> None:
    """Count what the renderer finds in its cache, and texts that the fast engine could not encode."""
    fault = metrics.tokenizer_fallbacks.labels("fault")
    renderer.engine.on_fault = lambda _: fault.inc()
    cache = renderer.prompt_cache
    if cache is None:
        return
    found, missed = (metrics.prompt_cache_chars.labels(result) for result in ("hit", "miss"))

    def observe(lookup: Lookup) -> None:
        found.inc(lookup.found)
        missed.inc(lookup.missed)
        metrics.prompt_cache_bytes.set(lookup.size)

    cache.observer = observe


def observe_derenderer(metrics: Metrics, derenderer: Derenderer) -> None:
    """Count how derender finds its streams, and show what its caches hold."""
    sources: tuple[Source, ...] = get_args(Source)
    counters = {source: metrics.streams_found.labels(source) for source in sources}
    derenderer.observer = lambda source: counters[source].inc()
    cache, contexts = derenderer.cache, derenderer.contexts.cache

    def show() -> None:
        metrics.stream_cache_entries.set(len(cache))
        metrics.stream_cache_bytes.set(cache.bytes)
        metrics.contexts.set(len(contexts))
        metrics.context_bytes.set(contexts.bytes)

    metrics.on_refresh.append(show)
