"""Record what transformers' torchvision processors make of the images of `tests.support.pixel_cases`.

    VLLM_ENV=... python -m tests.vllm.record_pixels

Writes `tests/conformance/data/pixels.json`, a line for each case.
"""

from __future__ import annotations

from tests.support.pixel_cases import RECORDED, cases
from tests.vllm.torchvision_reference import record, torchvision_pixels

if __name__ == "__main__":
    record(torchvision_pixels(cases()), RECORDED)
