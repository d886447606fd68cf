"""An engine in this process, for tests and tools: the real server on a free port, in a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

import uvicorn

from orchestrator.embedded.assembly import EngineOptions, build_surface
from orchestrator.embedded.engine import Aborted, Done, Engine, Event, Failed, Job, Token
from orchestrator.embedded.sampler import SamplingSettings
from orchestrator.embedded.surface import EngineSurface

START_SECONDS = 60.0


@dataclass(frozen=True)
class RunningEngine:
    url: str
    surface: EngineSurface

    @property
    def engine(self) -> Engine:
        return self.surface.engine


@contextlib.contextmanager
def running_engine(options: EngineOptions) -> Iterator[RunningEngine]:
    """Serve an engine on 127.0.0.1 until the context ends."""
    surface = build_surface(options)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            surface, log_level="warning", access_log=False, log_config=None, timeout_graceful_shutdown=2
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="engine-http")
        thread.start()
        try:
            deadline = time.monotonic() + START_SECONDS
            while not server.started:
                if not thread.is_alive() or time.monotonic() > deadline:
                    raise RuntimeError("the engine's server did not start")
                time.sleep(0.01)
            yield RunningEngine(f"http://127.0.0.1:{listener.getsockname()[1]}", surface)
        finally:
            server.should_exit = True
            thread.join()


def generate(engine: Engine, prompts: Sequence[Sequence[int]], settings: SamplingSettings) -> list[list[int]]:
    """Outputs of a started engine for prompts that are all submitted at once, without HTTP."""
    outputs: list[list[int]] = [[] for _ in prompts]
    events: SimpleQueue[tuple[int, Event]] = SimpleQueue()

    def listener(number: int) -> None:
        job = Job(f"prompt-{number}", tuple(prompts[number]), settings)
        engine.submit(job, lambda event: events.put((number, event)))

    for number in range(len(prompts)):
        listener(number)
    running = len(prompts)
    while running:
        number, event = events.get()
        if isinstance(event, Token):
            outputs[number].append(event.sampled.token)
        elif isinstance(event, Failed | Aborted):
            raise RuntimeError(f"prompt {number}: {event}")
        elif isinstance(event, Done):
            running -= 1
    return outputs
