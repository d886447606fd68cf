"""The metrics of several workers as one: whose cannot be had whole are left out, and nobody else's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orchestrator.server.sibling_metrics import END, METRICS, Siblings, socket_of

OWN = b"# HELP pd_x Things.\n# TYPE pd_x gauge\npd_x 1.0\n"


@pytest.mark.parametrize(
    "told",
    [b"", OWN[:-1], OWN[:-8], OWN, b"pd_x{ 1.0\n" + END, b"\xff" + END],
    ids=["nothing", "cut", "cut in a sample", "without an end", "unreadable", "not text"],
)
async def test_a_worker_that_is_cut_off_costs_only_its_own(tmp_path: Path, told: bytes) -> None:
    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(told)
        writer.close()

    async def tell_whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(OWN + END)
        writer.close()

    siblings = Siblings(tmp_path, {METRICS: lambda _about: OWN}, 5.0)
    await siblings.open()
    broken = await asyncio.start_unix_server(tell, socket_of(tmp_path, 1))
    whole = await asyncio.start_unix_server(tell_whole, socket_of(tmp_path, 2))
    try:
        text = (await siblings.exposition()).decode()
        assert text.count("pd_x{worker=") == 2
        assert 'pd_x{worker="2"} 1.0' in text
        assert 'worker="1"' not in text
    finally:
        broken.close()
        whole.close()
        await siblings.close()
