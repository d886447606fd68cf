"""CPU time to process one decoded image, beside transformers' torchvision processors.

For each family and size both sides process the same images in turn, each in its own process and on one
thread. Decoding is not counted: both use Pillow. The table gives the median of the CPU milliseconds of each
side, and how many times ours the peer takes. The Qwen-VL family is measured with bytes as result too, which
is what vLLM's engines ask for by default.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

import time

from benchmarks.measure import machine, median, print_table, ratio
from render_tier.multimodal.item import ImageProcessor
from render_tier.multimodal.processors import image_processor
from render_tier.multimodal.processors.vector_passes import passes
from tests.support.pixel_cases import AS_BYTES, MODELS, Case
from tests.vllm.torchvision_reference import TorchvisionTimer

AS_BYTES_BY_DEFAULT = ("qwen2_vl", "qwen3_vl")
SIZES = ((1024, 768), (1920, 1080), (3840, 2160))


def seconds(processor: ImageProcessor, case: Case) -> float:
    image = case.image()
    began = time.process_time()
    processor.process(image)
    return time.process_time() - began


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--models", nargs="*", choices=MODELS, default=list(MODELS))
    chosen = options.parse_args()
    print(machine())
    print("resizes are", "matrix products" if passes() is None else "compiled")
    rows = []
    with TorchvisionTimer() as peer:
        for name in chosen.models:
            model = MODELS[name]
            for overrides in ({}, AS_BYTES) if name in AS_BYTES_BY_DEFAULT else ({},):
                processor = image_processor(model.config, model.preprocessor, overrides, model.processor)
                shown = f"{name}, bytes" if overrides else name
                for width, height in SIZES:
                    case = Case(name, overrides, "noise", width, height)
                    seconds(processor, case), peer.seconds(case)  # the first one also makes what is kept
                    pairs = [(seconds(processor, case), peer.seconds(case)) for _ in range(chosen.repeats)]
                    ours, theirs = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
                    figures = f"{ours * 1000:.1f}", f"{theirs * 1000:.1f}", ratio(theirs, ours)
                    rows.append([shown, f"{width}x{height}", *figures])
    print_table("CPU ms per image", ["model", "image", "ours", "torchvision", "ratio"], rows)


if __name__ == "__main__":
    main()
