"""Runs transformers' torchvision processors on images and videos, in an environment that has them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from tests.support import vllm
from tests.support.pixel_cases import Case
from tests.support.video_pixel_cases import VideoCase

ROOT = Path(__file__).resolve().parents[2]
DECLARATIONS = Path(__file__).resolve().parent / "torchvision_path"


class Told(Protocol):
    def to_json(self) -> object: ...


def torchvision_pixels(cases: Iterable[Case]) -> dict[str, Any]:
    """`made_by`: the versions; `cases`: by title, what the processors give, None where they refuse."""
    return _answers("torchvision_pixels", cases)


def torchvision_video_pixels(cases: Iterable[VideoCase]) -> dict[str, Any]:
    """As `torchvision_pixels`."""
    return _answers("torchvision_video_pixels", cases)


def record(found: Mapping[str, Any], target: Path) -> None:
    """What the processors gave, a line for each case."""
    lines = [f"{json.dumps(title)}: {json.dumps(result)}" for title, result in found["cases"].items()]
    text = f'{{"made_by": {json.dumps(found["made_by"])},\n"cases": {{\n' + ",\n".join(lines) + "\n}}\n"
    target.write_text(text)
    print(f"{len(lines)} cases of {found['made_by']}")


def _answers(program: str, cases: Iterable[Told]) -> dict[str, Any]:
    done = subprocess.run(
        _program(program),
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
            [*_program("torchvision_pixels"), "--time"],
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


def _program(name: str) -> list[str | Path]:
    python = vllm.environment() / "bin" / "python"
    return [python, "-W", "ignore", "-m", f"tests.vllm.{name}"]


def torchvision_path() -> str:
    """Where to import torchvision from; made if need be."""
    script = ROOT / "scripts" / "torchvision_env.sh"
    return subprocess.run([script], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def python_path() -> str:
    """Of a program of vLLM's environment that imports torchvision and this checkout."""
    return os.pathsep.join([str(DECLARATIONS), torchvision_path(), str(ROOT)])


def _variables() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": python_path()}
