#!/usr/bin/env python3
"""Make the repository's own environment, `.venv`, and install the project with one of its extras into it.

    bootstrap.py [--extra dev|demo] [--venv DIR]

Needs nothing but Python 3.11+ with venv and pip. `uv` is used when it is on the PATH; it ignores the
settings of pip (mirrors, certificates), so what it cannot do is done with pip. `BOOTSTRAP_UV=0` disables it.

Theory of operation. A stamp file in the environment says for which inputs (pyproject.toml, constraints.txt,
the interpreter, the place) it is complete; while it matches, this script does nothing. It is written last and
atomically. A marker that exists only while packages are being installed tells a later run that an earlier one
was interrupted; then, or when the interpreter is gone or the checkout was moved, all of it is made anew.
An environment without stamp and marker was made by someone else: it is kept and installed into.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
NEWEST_TRIED = 14
INCLUDES = {"dev": {"dev", "demo"}, "demo": {"demo"}}
"""What an installed extra makes available."""
UV_SECONDS = 600
PROGRESS_EVERY_SECONDS = 5.0


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def stop(text: str) -> None:
    print(f"[setup] {text}", file=sys.stderr, flush=True)
    raise SystemExit(1)


def interpreter() -> str:
    """This interpreter if it is new enough, else the newest suitable one on the PATH."""
    if sys.version_info >= OLDEST:
        return sys.executable
    for minor in range(NEWEST_TRIED, OLDEST[1] - 1, -1):
        if found := shutil.which(f"python3.{minor}"):
            return found
    this = ".".join(map(str, sys.version_info[:3]))
    needed = ".".join(map(str, OLDEST))
    stop(f"Python {needed} or newer is needed; this is {this}. Say: make PYTHON=/path/to/python3 ...")
    raise AssertionError


def version_of(python: Path) -> str | None:
    """Version and base prefix of a working interpreter, None of one that does not run (or is too old)."""
    code = "import sys; assert sys.version_info >= (3, 11); print(sys.version, sys.base_prefix)"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


class Environment:
    """One virtual environment and its two state files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.python = directory / "bin" / "python"
        self.stamp = directory / ".disagg-frontend.json"
        self.marker = directory / ".disagg-frontend.installing"

    def key(self) -> str:
        """Digest of everything that decides what has to be installed."""
        digest = hashlib.sha256()
        for path in (ROOT / "pyproject.toml", ROOT / "constraints.txt", Path(__file__)):
            digest.update(path.read_bytes())
        digest.update(f"{self.directory}\n{ROOT}\n{os.path.realpath(self.python)}".encode())
        return digest.hexdigest()

    def complete(self, extra: str) -> bool:
        """Whether the stamp covers `extra` for the present inputs."""
        try:
            stamp = json.loads(self.stamp.read_text())
        except (OSError, ValueError):
            return False
        return (
            self.python.exists()
            and not self.marker.exists()
            and isinstance(stamp, dict)
            and stamp.get("key") == self.key()
            and extra in INCLUDES.get(str(stamp.get("extra")), ())
        )

    def moved(self) -> bool:
        """Console scripts name their interpreter by its full path, so a moved environment does not work."""
        try:
            script = (self.directory / "bin" / "pip").read_text()
        except (OSError, ValueError):
            return False
        return str(self.directory) not in script

    def create(self) -> None:
        """Leave a working, possibly empty, environment."""
        if self.directory.exists():
            if self.marker.exists():
                reason = "an earlier installation was interrupted"
            elif version_of(self.python) is None:
                reason = "its Python does not run"
            elif self.moved():
                reason = "it was moved"
            else:
                return
            say(f"{self.directory} is made anew: {reason}")
            shutil.rmtree(self.directory)
        python = interpreter()
        say(f"creating {self.directory} with {python}")
        make = [python, "-m", "venv", str(self.directory)]
        done = subprocess.run(make, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode != 0 or version_of(self.python) is None:
            shutil.rmtree(self.directory, ignore_errors=True)
            stop(f"{python} -m venv failed (on Debian: apt install python3-venv):\n{done.stdout}")

    def install(self, extra: str) -> None:
        log = ROOT / ".cache" / "setup.log"
        log.parent.mkdir(exist_ok=True)
        wanted = ["--constraint", str(ROOT / "constraints.txt"), "--editable", f"{ROOT}[{extra}]"]
        self.marker.touch()
        started = time.monotonic()
        say(
            f"installing the project and its '{extra}' dependencies (first time: a minute or two; log: {log})"
        )
        if not (self._uv(wanted, log) or self._pip(wanted, log)):
            tail = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-30:])
            stop(f"installation failed; the end of {log}:\n{tail}")
        temporary = self.stamp.with_suffix(".tmp")
        temporary.write_text(json.dumps({"key": self.key(), "extra": extra}))
        self.marker.unlink()
        temporary.replace(self.stamp)
        say(f"ready after {time.monotonic() - started:.0f} s")

    def _uv(self, wanted: list[str], log: Path) -> bool:
        uv = shutil.which("uv")
        if uv is None or os.environ.get("BOOTSTRAP_UV") == "0":
            return False
        command = [uv, "pip", "install", "--python", str(self.python), *wanted]
        with log.open("w") as out:
            try:
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=UV_SECONDS, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                out.write(f"{error}\n")
                done = None
        if done is not None and done.returncode == 0:
            return True
        say("uv could not install (it does not read pip's settings); using pip")
        return False

    def _pip(self, wanted: list[str], log: Path) -> bool:
        command = [
            str(self.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check",
            "--progress-bar", "off", *wanted,
        ]  # fmt: skip
        has_pip = [str(self.python), "-m", "pip", "--version"]
        if subprocess.run(has_pip, capture_output=True, check=False).returncode != 0:
            subprocess.run([str(self.python), "-m", "ensurepip"], capture_output=True, check=False)
        collected, last_said = 0, time.monotonic()
        with log.open("a") as out:
            out.write(" ".join(command) + "\n")
            pip = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            assert pip.stdout is not None
            with pip.stdout:
                for line in pip.stdout:
                    out.write(line)
                    collected += line.startswith("Collecting ")
                    if line.startswith("Installing collected packages"):
                        say(f"  unpacking {line.count(',') + 1} packages")
                    elif time.monotonic() - last_said > PROGRESS_EVERY_SECONDS and line.startswith(
                        "Collecting "
                    ):
                        say(f"  {collected} packages found")
                        last_said = time.monotonic()
            return pip.wait() == 0


def main() -> None:
    parser = argparse.ArgumentParser(description="Make .venv and install the project into it.")
    parser.add_argument("--extra", choices=sorted(INCLUDES), default="dev")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    arguments = parser.parse_args()
    environment = Environment(arguments.venv.absolute())
    if environment.complete(arguments.extra):
        return
    lock = ROOT / ".cache" / "setup.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if environment.complete(arguments.extra):
            return
        environment.create()
        environment.install(arguments.extra)


if __name__ == "__main__":
    main()
