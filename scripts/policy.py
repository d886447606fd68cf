#!/usr/bin/env python3
"""Hold deploy/ against checkov's policies: a finding that deploy/policy.toml does not answer is an error, and
so is an answer to nothing.

    policy.py ENVIRONMENT     where checkov is installed; scripts/policy_env.sh makes it
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ANSWERS = ROOT / "deploy" / "policy.toml"
FRAMEWORKS = ("kubernetes", "dockerfile", "secrets")
TIMEOUT_SECONDS = 300


@dataclass(frozen=True, order=True)
class Finding:
    check: str
    what: str
    file: str
    resource: str


@dataclass(frozen=True)
class Answer:
    check: str
    where: tuple[str, ...]
    reason: str

    def speaks_of(self, finding: Finding) -> bool:
        return self.check == finding.check and any(
            fnmatchcase(finding.resource, pattern) for pattern in self.where
        )


def read_answers(path: Path) -> list[Answer]:
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["answer"]
    return [Answer(one["check"], tuple(one["where"]), one["reason"].strip()) for one in entries]


def read_findings(reports: list[dict[str, Any]]) -> list[Finding]:
    """Raises ValueError where a framework has looked at nothing."""
    seen = {report["check_type"]: report["summary"]["resource_count"] for report in reports}
    for framework in ("kubernetes", "dockerfile"):
        if not seen.get(framework):
            raise ValueError(f"checkov has found nothing to read for {framework}")
    failed = [one for report in reports for one in report["results"]["failed_checks"]]
    found = {Finding(one["check_id"], one["check_name"], one["file_path"], one["resource"]) for one in failed}
    return sorted(found)


def complaints(findings: Sequence[Finding], answers: Sequence[Answer]) -> list[str]:
    unanswered = [one for one in findings if not any(answer.speaks_of(one) for answer in answers)]
    idle = [answer for answer in answers if not any(answer.speaks_of(one) for one in findings)]
    return [
        *(f"{one.check} ({one.what}): {one.resource} in {one.file}" for one in unanswered),
        *(f"{answer.check}: nothing is found at {', '.join(answer.where)} any more" for answer in idle),
    ]


def scan(environment: Path) -> list[Finding]:
    """Of the committed manifests and the Dockerfile; the chart's templates are no manifests."""
    command: list[str | Path] = [
        environment / "bin" / "python",
        "-m",
        "checkov.main",
        "--directory",
        "deploy",
    ]
    command += ["--framework", *FRAMEWORKS, "--skip-path", "helm"]
    command += ["--skip-download", "--soft-fail", "--quiet", "--compact", "--output", "json"]
    quiet = {**os.environ, "LOG_LEVEL": "ERROR"}
    done = subprocess.run(
        command, cwd=ROOT, env=quiet, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_SECONDS
    )
    report = json.loads(done.stdout)
    return read_findings(report if isinstance(report, list) else [report])


def main() -> int:
    findings = scan(Path(sys.argv[1]))
    wrong = complaints(findings, read_answers(ANSWERS))
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"{len(findings)} findings, all answered in {ANSWERS.relative_to(ROOT)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
