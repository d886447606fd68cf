"""Data and file URLs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from render_tier.multimodal.sources import SourceRefused, SourceRules, is_remote, read_local
from tests.support.images import LOCAL, data_url

ANY = SourceRules(max_bytes=100)


def test_data_url() -> None:
    assert read_local(data_url(b"x" * 100), ANY) == b"x" * 100
    assert read_local("DATA:image/png;name=a;base64,eA==", ANY) == b"x"
    assert read_local("data:;base64,eA==", ANY) == b"x"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png;base64", "without ','"),
        ("data:image/png,abc", "only base64"),
        ("data:base64,abc", "only base64"),
        ("data:image/png;base64,a", "not base64"),
        ("data:image/png;base64,eA==!", "not base64"),
        ("data:image/png;base64,é", "not base64"),
        (data_url(b"x" * 101), "larger than 100 bytes"),
        (data_url(b"x" * 10_000), "larger than 100 bytes"),
        ("ftp://host/x", "HTTP, data or file"),
        ("picture.png", "HTTP, data or file"),
        (f"{LOCAL}/etc/hostname", "allowed-local-media-path"),
    ],
)
def test_refused(url: str, message: str) -> None:
    with pytest.raises(SourceRefused, match=message):
        read_local(url, ANY)


def test_remote() -> None:
    assert is_remote("http://h/")
    assert is_remote("HTTPS://h/")
    assert not is_remote("httpx://h/")
    assert not is_remote("data:,http:")


@pytest.fixture
def rules(tmp_path: Path) -> SourceRules:
    allowed = tmp_path / "allowed"
    (allowed / "below").mkdir(parents=True)
    (allowed / "below" / "a b.png").write_bytes(b"picture")
    (allowed / "large.png").write_bytes(b"x" * 101)
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "allowed-not").mkdir()
    (tmp_path / "allowed-not" / "x.png").write_bytes(b"secret")
    (allowed / "link.png").symlink_to(tmp_path / "secret.png")
    os.mkfifo(allowed / "pipe")
    return SourceRules(100, allowed.resolve())


def test_file_below_the_directory(rules: SourceRules) -> None:
    assert read_local(f"{LOCAL}{rules.directory}/below/a%20b.png", rules) == b"picture"
    assert read_local(f"{LOCAL}{rules.directory}/below/../below/a b.png", rules) == b"picture"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("../secret.png", "must be below"),
        ("%2e%2e/secret.png", "must be below"),
        ("link.png", "must be below"),
        ("../allowed-not/x.png", "must be below"),
        ("", "must be below"),
        ("below", "cannot be read|none that can be read"),
        ("pipe", "none that can be read"),
        ("missing.png", "cannot be read"),
        ("large.png", "larger than 100 bytes"),
        ("a%00b", "names no file"),
        ("x/../" * 1_000_000 + "below/a b.png", "more than 8192 characters"),
    ],
)
def test_file_that_may_not_be_read(rules: SourceRules, path: str, message: str) -> None:
    with pytest.raises(SourceRefused, match=message):
        read_local(f"{LOCAL}{rules.directory}/{path}", rules)
