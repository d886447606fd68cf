"""Client of `vllm_runner.py`: vLLM's parsers in a process of the vLLM environment, driven by JSON lines.

`VLLM_ENV` names that environment (`scripts/vllm_env.sh` prints it). One process serves a whole test session;
starting it imports torch and costs several seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

SCRIPT = Path(__file__).with_name("vllm_runner.py")
PIPELINED = 32
"""Requests in flight: few enough that neither side's pipe fills up while the other waits."""


class RunnerFailed(AssertionError):
    """The runner ended or refused a case; the message holds the end of its stderr."""


class VllmRunner:
    """A live runner. `tokenizers` is the directory that `scripts/fetch_models.py` fills."""

    def __init__(self, tokenizers: Path, work: Path, environment: Path | None = None) -> None:
        self.environment = environment or Path(os.environ["VLLM_ENV"])
        self.log = work / "vllm_runner.log"
        work.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = self._start(tokenizers, work, log)

    def _start(self, tokenizers: Path, work: Path, log: IO[bytes]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                str(self.environment / "bin" / "python"),
                str(SCRIPT),
                "--tokenizers",
                str(tokenizers),
                "--work",
                str(work),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=120)  # it frees its tokenizers first, which takes time on a busy machine
        self.process.stdout.close()

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """One request, one reply."""
        return next(self.ask_all([message]))

    def ask_all(self, messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Replies in the order of the requests, which are read a few ahead."""
        waiting = 0
        for message in messages:
            self._send(message)
            waiting += 1
            if waiting >= PIPELINED:
                yield self._receive()
                waiting -= 1
        for _ in range(waiting):
            yield self._receive()

    def batch(self, cases: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """vLLM's whole-output result of each case: {reasoning, content, tool_calls, finish_reason}."""
        for reply in self.ask_all({"case": case} for case in cases):
            yield reply["batch"]

    def streams(self, case: dict[str, Any], chunkings: Sequence[int | list[int]]) -> list[dict[str, Any]]:
        """vLLM's concatenated streaming result for each chunking."""
        reply = self.ask({"case": case, "batch": False, "streams": list(chunkings)})
        streams: list[dict[str, Any]] = reply["streams"]
        return streams

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise RunnerFailed(self._log_end()) from error

    def _receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RunnerFailed(self._log_end())
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise RunnerFailed(f"{reply['id']}: {reply['error']}")
        return reply

    def _log_end(self) -> str:
        return "the vLLM runner ended:\n" + self.log.read_bytes()[-4000:].decode(errors="replace")
