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
    script = ROOT / "scripts" / "torchvision_env.sh"
    torchvision = subprocess.run([script], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    done = subprocess.run(
        [vllm.environment() / "bin" / "python", "-W", "ignore", "-m", "tests.vllm.torchvision_pixels"],
        input=json.dumps([case.to_json() for case in cases]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{torchvision}:{ROOT}"},
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result
