"""Record what transformers' torchvision processors make of the images of `tests.support.pixel_cases`.

    VLLM_ENV=... python -m tests.vllm.record_pixels

Writes `tests/conformance/data/pixels.json`, a line for each case.
"""

from __future__ import annotations

import json

from tests.support.pixel_cases import RECORDED, cases
from tests.vllm.torchvision_reference import torchvision_pixels


def main() -> None:
    found = torchvision_pixels(cases())
    lines = [f"{json.dumps(title)}: {json.dumps(result)}" for title, result in found["cases"].items()]
    text = f'{{"made_by": {json.dumps(found["made_by"])},\n"cases": {{\n' + ",\n".join(lines) + "\n}}\n"
    RECORDED.write_text(text)
    print(f"{len(lines)} cases of {found['made_by']}")


if __name__ == "__main__":
    main()
