"""schemathesis over the OpenAPI schema of a running server: no answer is a server error."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.processes import BIN, render_tier_server


@pytest.mark.timeout(900)
def test_generated_requests_make_no_server_error(smollm2_dir: Path, tmp_path: Path) -> None:
    with render_tier_server(smollm2_dir, log_dir=tmp_path) as server:
        done = subprocess.run(
            [
                *(
                    BIN / "schemathesis",
                    "run",
                    f"{server.url}/openapi.json",
                    "--checks",
                    "not_a_server_error",
                ),
                *("--phases", "coverage,fuzzing", "--mode", "all", "--max-examples", "10", "--seed", "1"),
                *("--request-timeout", "20", "--no-color", "--generation-database", "none"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:] + server.log()
    assert "Tested: 20" in done.stdout
