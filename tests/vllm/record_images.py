"""Record the answers of `vllm launch render` to the requests of `tests.support.image_corpus`.

    VLLM_ENV=$(scripts/vllm_env.sh) python -m tests.vllm.record_images [NAME ...]

Writes `tests/conformance/data/images/NAME.jsonl`: one line per request, with what `comparable` leaves of the
answer. NAME is a model's, or TRUSTED for the requests of a server that trusts what they say of their images.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import httpx

from tests.support import vision_models, vllm
from tests.support.image_corpus import DATA, PATH, comparable, corpus, trusted
from tests.support.processes import ServerProcess
from tests.vllm.torchvision_reference import python_path

MODELS = Path(os.environ.get("MODELS_DIR", Path(__file__).resolve().parents[2] / ".cache" / "models"))
TRUSTED = "qwen2_5_vl-trusted"


def server(name: str, scratch: Path, *flags: str) -> ServerProcess:
    """vLLM's render server for one model of `vision_models`, started beside the model's directory: the name
    of the model is a part of every hash, and is to be the same each time."""
    vision_models.lay_out(name, MODELS, scratch / name)
    program = vllm.environment() / "bin" / "vllm"
    return ServerProcess(
        f"vllm-render-{name}",
        lambda port: [
            *("env", "-C", scratch, program, "launch", "render", name, "--served-model-name", name),
            *("--host", "127.0.0.1", "--port", str(port), *flags),
        ],
        log_dir=scratch,
        ready_path="/health",
        ready_within=2 * vllm.READY_WITHIN,
        env=vllm.process_environment(scratch / "scratch") | {"PYTHONPATH": python_path()},
    )


def record(name: str, scratch: Path) -> int:
    lines = []
    model, is_trusted = name.partition("-")[0], name == TRUSTED
    requests = trusted() if is_trusted else corpus()
    flags = ["--trust-request-mm-kwargs"] if is_trusted else []
    # vLLM closes idle connections after five seconds, so none is used twice.
    limits = httpx.Limits(max_keepalive_connections=0)
    with (
        server(model, scratch, *flags) as process,
        httpx.Client(base_url=process.url, timeout=120, trust_env=False, limits=limits) as client,
    ):
        for title, body in requests.items():
            response = client.post(PATH, json=body)
            answer = comparable(response.status_code, response.json())
            lines.append(json.dumps({"name": title, "answer": answer}) + "\n")
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / f"{name}.jsonl").write_text("".join(lines))
    return len(lines)


def main() -> None:
    for name in sys.argv[1:] or [*vision_models.MODELS, TRUSTED]:
        with tempfile.TemporaryDirectory() as scratch:
            print(name, record(name, Path(scratch)), flush=True)


if __name__ == "__main__":
    main()
