"""Record what transformers' torchvision processors make of the videos of `tests.support.video_pixel_cases`.

    VLLM_ENV=... python -m tests.vllm.record_video_pixels

Writes `tests/conformance/data/video_pixels.json`, a line for each case.
"""

from __future__ import annotations

from tests.support.video_pixel_cases import RECORDED, cases
from tests.vllm.torchvision_reference import record, torchvision_video_pixels

if __name__ == "__main__":
    record(torchvision_video_pixels(cases()), RECORDED)
