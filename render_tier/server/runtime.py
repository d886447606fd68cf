"""What one process holds while it serves: the service once loaded, its pools, and its counters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import structlog

from render_tier import __version__
from render_tier.model import ModelLoadError
from render_tier.protocol.errors import ApiError
from render_tier.rendering.image_parts import Kind
from render_tier.server.endpoints import PoolName
from render_tier.server.metrics import Metrics, observe_derenderer, observe_renderer
from render_tier.server.pools import WorkPool
from render_tier.server.service import Service
from render_tier.server.tracing import Tracing, open_tracing
from render_tier.settings import Settings

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.server.image_intake import ImageIntake
    from render_tier.server.served_images import ServedImages

log = structlog.get_logger()
PUBLISH_SECONDS = 1.0


class Runtime:
    """Ready when ``service`` is set. A failed load calls ``on_failure`` and leaves the process not ready.
    ``on_loaded`` is called when all that lasts has been loaded, the fast tokenizer engine included."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        *,
        preloaded: Service | None = None,
        on_failure: Callable[[Exception], None] = lambda error: None,
        on_loaded: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self.service: Service | None = None
        self.failure: Exception | None = None
        self.pools: dict[PoolName, WorkPool] = {}
        self.images: ImageIntake | None = None
        """For a model that takes images, once it is loaded."""
        self._media_pools: dict[Kind, WorkPool] = {}
        self.tracing = Tracing()
        self.in_flight = 0
        self.draining = False
        self.on_drain: list[Callable[[], Awaitable[None]]] = []
        self._preloaded = preloaded
        self._on_failure = on_failure
        self._on_loaded = on_loaded
        self._loading: asyncio.Task[None] | None = None
        self._adopting: asyncio.Task[None] | None = None
        self._publishing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the pools and begin to load; returns at once, so that the process answers while it loads. One
        of several processes returns when it is ready: the others serve meanwhile, and a request that it took
        now would only be refused."""
        self.tracing = await open_tracing(self.settings.otlp_traces_endpoint)
        names: tuple[PoolName, ...] = ("render", "derender")
        self.pools = {
            name: WorkPool(
                name,
                threads=self.settings.renderer_num_workers,
                max_queue=self.settings.max_queue,
                max_wait=self.settings.max_queue_seconds,
                metrics=self.metrics,
            )
            for name in names
        }
        self._loading = asyncio.create_task(self._load())
        if self._preloaded is not None:
            await asyncio.wait([self._loading])
        if self.metrics.shared:
            self._publishing = asyncio.create_task(self._publish())

    async def drain(self) -> None:
        """Say that this process is about to stop, and let what is held here move elsewhere."""
        self.draining = True
        self.metrics.ready.set(0)
        for work in self.on_drain:
            await work()

    async def stop(self) -> None:
        if self._loading is not None:
            await asyncio.wait([self._loading])
        if self._adopting is not None:
            await asyncio.wait([self._adopting])
        for pool in self._all_pools:
            await asyncio.to_thread(pool.close)
        if self.images is not None:
            await self.images.close()
        if self._publishing is not None:
            self._publishing.cancel()
            await asyncio.wait([self._publishing])
        await self.tracing.close()
        self.metrics.refresh()
        self.service = None
        self.metrics.ready.set(0)

    @property
    def saturated(self) -> bool:
        return any(pool.saturated for pool in self.pools.values())

    @property
    def _all_pools(self) -> list[WorkPool]:
        return [*self.pools.values(), *self._media_pools.values()]

    @property
    def pending(self) -> int:
        """Jobs in the pools; zero when idle."""
        return sum(pool.pending for pool in self._all_pools)

    async def _load(self) -> None:
        try:
            service = self._preloaded
            if service is None:
                service = await asyncio.to_thread(Service.load, self.settings)
            await asyncio.to_thread(service.warm_up)
        except Exception as error:
            self.failure = error
            self._on_failure(error)
            expected = isinstance(error, ModelLoadError | ApiError)
            log.error("load_failed", model=self.settings.model, reason=str(error), exc_info=not expected)
            return
        observe_derenderer(self.metrics, service.derenderer)
        observe_renderer(self.metrics, service.renderer)
        if service.images is not None:
            self._open_images(service.images)
        self.service = service
        self.metrics.ready.set(1)
        self.metrics.info.labels(__version__, service.assets.fingerprint).set(1)
        log.info(
            "ready",
            model=self.settings.model,
            served_names=service.assets.served_names,
            fingerprint=service.assets.fingerprint,
            max_model_len=service.assets.max_model_len,
            vocab_size=service.assets.vocab_size,
        )
        self._adopting = asyncio.create_task(self._adopt_fast_engine(service))

    def _open_images(self, served: ServedImages) -> None:
        from render_tier.server.image_intake import ImageIntake

        threads: dict[Kind, int] = {
            "image": self.settings.image_workers,
            "video": self.settings.video_workers,
        }
        self._media_pools = {
            kind: WorkPool(
                f"{kind}s",
                threads=threads[kind],
                max_queue=self.settings.max_queue,
                max_wait=self.settings.max_queue_seconds,
                metrics=self.metrics,
            )
            for kind in served.vision.marks
        }
        self.images = ImageIntake(served, self.settings, self._media_pools, self.metrics)

    async def _adopt_fast_engine(self, service: Service) -> None:
        """Beside the requests that are served already, unless it was done before this process began."""
        if service.awaits_fast_engine:
            try:
                # A thread of its own, which ends: the engine keeps 16 MB for every thread that has encoded.
                with ThreadPoolExecutor(1, thread_name_prefix="adopt") as thread:
                    await asyncio.get_running_loop().run_in_executor(thread, service.adopt_fast_engine)
            except Exception:
                log.exception("tokenizer_engine_failed")
        self.metrics.tokenizer_engine.labels(service.renderer.engine.name).set(1)
        if service.fallback is not None:
            self.metrics.tokenizer_fallbacks.labels(service.fallback).inc()
        self._on_loaded()

    async def _publish(self) -> None:
        """Other processes show this one's metrics: they must not be old."""
        while True:
            self.metrics.refresh()
            await asyncio.sleep(PUBLISH_SECONDS)
