"""What derender reads of a stream, kept for the record that its client has asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.core.coalescing import Output
from orchestrator.server.output import Reader

if TYPE_CHECKING:
    from orchestrator.server.run import Run


class Recording:
    """A reader that notes each output of ``run`` before ``reader`` reads it."""

    def __init__(self, run: Run, reader: Reader) -> None:
        self._run = run
        self._reader = reader

    def read(self, output: Output) -> None:
        self._run.output.add(output)
        self._run.chunk_lens.append(len(output.token_ids))
        self._reader.read(output)

    def close(self) -> None:
        self._reader.close()
