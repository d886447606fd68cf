"""The recorded constraints of tool calls are what vLLM makes of them today.

That ours equal the recorded ones is `tests/conformance/test_tool_constraints.py`.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.support import vllm
from tests.support.render_corpus import DATA
from tests.vllm import tool_constraints

SECONDS = 600


def test_vllm_constrains_as_recorded(tmp_path: Path) -> None:
    recorded = json.loads((DATA / "tool_constraints.json").read_text())
    done = subprocess.run(
        [vllm.environment() / "bin" / "python", tool_constraints.__file__, *recorded["parsers"]],
        env=vllm.process_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == recorded
