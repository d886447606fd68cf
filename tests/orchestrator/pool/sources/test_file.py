"""Members from a real file, replaced in every way that files are replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orchestrator.pool.sources.file import FileSource
from orchestrator.settings import parsed_config
from tests.orchestrator.pool.sources.told import followed

QUICK = 0.005


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


async def test_changes_of_the_file_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "members.toml"
    path.write_text('decode = ["http://a:1"]')
    async with followed(FileSource(path, parsed_config, QUICK)) as told:
        await told.urls("http://a:1")
        write(path, 'decode = ["http://a:1", {url = "http://b:1", generation = "2"}]')
        await told.urls("http://a:1", "http://b:1")
        assert told.lists[-1][1].generation == "2"
        write(path, "decode = []")
        await told.urls()
        assert len(told.lists) == 3, "an unchanged file is not told again"


async def test_the_links_of_a_config_map_are_followed(tmp_path: Path) -> None:
    for version, url in (("1", "http://a:1"), ("2", "http://b:1")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "members.json").write_text(f'{{"decode": ["{url}"]}}')
    (tmp_path / "data").symlink_to("1")
    (tmp_path / "members.json").symlink_to("data/members.json")
    async with followed(FileSource(tmp_path / "members.json", parsed_config, QUICK)) as told:
        await told.urls("http://a:1")
        (tmp_path / "next").symlink_to("2")
        (tmp_path / "next").replace(tmp_path / "data")
        await told.urls("http://b:1")


async def test_a_file_that_cannot_be_used_changes_nothing_until_it_can(tmp_path: Path) -> None:
    path = tmp_path / "members.yaml"
    async with followed(FileSource(path, parsed_config, QUICK)) as told:
        assert "No such file" in await told.failure()
        write(path, "decode: [http://a:1]")
        await told.urls("http://a:1")
        before = len(told.failures)
        write(path, "decode: [ftp://a]")
        assert "ftp://a" in await told.failure(before + 1)
        write(path, "decode: [")
        assert "members.yaml" in await told.failure(before + 2)
        path.unlink()
        assert "No such file" in await told.failure(before + 3)
        assert len(told.lists) == 1
        write(path, "decode: [http://a:1]")
        while len(told.lists) < 2:
            await asyncio.sleep(QUICK)
        await told.urls("http://a:1")
