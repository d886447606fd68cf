"""What `make policy` makes of checkov's findings and of the answers to them."""

from __future__ import annotations

import pytest

from scripts.policy import ANSWERS, Answer, Finding, complaints, read_answers, read_findings
from tests.support import charts

LIMITS = Finding("CKV_1", "limits", "/deploy/kubernetes/full.yaml", "Deployment.llm.pd-render")
ANSWER = Answer("CKV_1", ("Deployment.llm.*",), "why")


def test_a_finding_without_an_answer_is_told() -> None:
    assert complaints([LIMITS], [ANSWER]) == []
    [told] = complaints([LIMITS, Finding("CKV_2", "x", "f", "r")], [ANSWER])
    assert "CKV_2" in told
    [elsewhere] = complaints([LIMITS, Finding("CKV_1", "limits", "f", "Job.llm.pd-render")], [ANSWER])
    assert "Job.llm.pd-render" in elsewhere


def test_an_answer_to_nothing_is_told() -> None:
    [told] = complaints([LIMITS], [ANSWER, Answer("CKV_3", ("*",), "why")])
    assert told.startswith("CKV_3")


def test_a_scan_of_nothing_is_no_success() -> None:
    report = {"check_type": "dockerfile", "summary": {"resource_count": 1}, "results": {"failed_checks": []}}
    with pytest.raises(ValueError, match="kubernetes"):
        read_findings([report])


def test_answers_have_reasons_and_speak_of_what_is_there() -> None:
    manifests = [
        one for name in charts.COMMITTED for one in charts.objects((charts.PLAIN / name).read_text())
    ]
    resources = {f"{one['kind']}.llm.{one['metadata']['name']}" for one in manifests}
    resources.add("/deploy/docker/Dockerfile.FROM")
    for answer in read_answers(ANSWERS):
        assert len(answer.reason) > 40
        for pattern in answer.where:
            finding = [Finding(answer.check, "", "", resource) for resource in resources]
            assert any(Answer(answer.check, (pattern,), "").speaks_of(one) for one in finding), pattern
