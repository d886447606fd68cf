"""Runs transformers' torchvision processors on images, in an environment that has them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.support import vllm
from tests.support.pixel_cases import Case

ROOT = Path(__file__).resolve().parents[2]


def torchvision_pixels(cases: Iterable[Case]) -> dict[str, Any]:
    """`made_by`: the versions; `cases`: by title, what the processors give, None where they refuse."""
    done = subprocess.run(
        _program(),
        input=json.dumps([case.to_json() for case in cases]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        env=_variables(),
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


class TorchvisionTimer:
    """A process of the reference that says what CPU time images take it, one after the other."""

    def __enter__(self) -> TorchvisionTimer:
        self._process = subprocess.Popen(
            [*_program(), "--time"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=_variables(),
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def seconds(self, case: Case) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(case.to_json()) + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def _program() -> list[str | Path]:
    python = vllm.environment() / "bin" / "python"
    return [python, "-W", "ignore", "-m", "tests.vllm.torchvision_pixels"]


def torchvision_path() -> str:
    """Where to import torchvision from; made if need be."""
    script = ROOT / "scripts" / "torchvision_env.sh"
    return subprocess.run([script], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def _variables() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{torchvision_path()}:{ROOT}"}
