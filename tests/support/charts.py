"""The Helm chart as it is rendered by a real helm, and its manifests as objects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[2]
HELM = ROOT / ".cache" / "tools" / "helm" / "helm"
CHART = ROOT / "deploy" / "helm" / "disagg-frontend"
FULL = ROOT / "deploy" / "helm" / "examples" / "full.yaml"
PLAIN = ROOT / "deploy" / "kubernetes"
COMMITTED: dict[str, tuple[Path, ...]] = {"default.yaml": (), "full.yaml": (FULL,)}
"""Of deploy/kubernetes: file name, and the values files from which it is rendered."""

CARRIED: dict[str, Path] = {
    "rules.yaml": ROOT / "deploy" / "prometheus" / "rules.yaml",
    "board.json": ROOT / "deploy" / "grafana" / "board.json",
}
"""Of the chart's ``files`` (a chart reads nothing outside of itself): file name, and what it is a copy of."""

Manifest = dict[str, Any]


class RenderError(Exception):
    """What helm says."""


def render(*values: Path, sets: tuple[str, ...] = ()) -> str:
    """The release ``pd`` in the namespace ``llm``. Raises ``RenderError``."""
    command = [str(HELM), "template", "pd", str(CHART), "--namespace", "llm"]
    for path in values:
        command += ["--values", str(path)]
    for assignment in sets:
        command += ["--set", assignment]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except FileNotFoundError as error:
        raise RenderError(f"{HELM} is missing: run `make models`") from error
    if done.returncode:
        raise RenderError(done.stderr)
    return done.stdout


def objects(text: str) -> list[Manifest]:
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def write_committed() -> None:
    for name, source in CARRIED.items():
        (CHART / "files" / name).write_bytes(source.read_bytes())
    for name, values in COMMITTED.items():
        (PLAIN / name).write_text(render(*values), encoding="utf-8")


if __name__ == "__main__":
    write_committed()
    sys.exit(0)
