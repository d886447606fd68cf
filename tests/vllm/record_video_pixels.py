"""Record what transformers' torchvision processors make of the videos of `tests.support.video_pixel_cases`.

    VLLM_ENV=... python -m tests.vllm.record_video_pixels

Writes `tests/conformance/data/video_pixels.json`, a line for each case.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from typing import Any

from tests.support import vllm
from tests.support.video_pixel_cases import RECORDED, VideoCase, cases
from tests.vllm.record_images import DECLARATIONS
from tests.vllm.torchvision_reference import ROOT, torchvision_path


def torchvision_video_pixels(given: Iterable[VideoCase]) -> dict[str, Any]:
    """`made_by`: the versions; `cases`: by title, what the processors give, None where they refuse."""
    path = os.pathsep.join([str(DECLARATIONS), torchvision_path(), str(ROOT)])
    done = subprocess.run(
        [vllm.environment() / "bin" / "python", "-W", "ignore", "-m", "tests.vllm.torchvision_video_pixels"],
        input=json.dumps([case.to_json() for case in given]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    found = torchvision_video_pixels(cases())
    lines = [f"{json.dumps(title)}: {json.dumps(result)}" for title, result in found["cases"].items()]
    text = f'{{"made_by": {json.dumps(found["made_by"])},\n"cases": {{\n' + ",\n".join(lines) + "\n}}\n"
    RECORDED.write_text(text)
    print(f"{len(lines)} cases of {found['made_by']}")


if __name__ == "__main__":
    main()
