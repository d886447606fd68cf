"""The log of a serving process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys


def test_every_line_of_serve_is_json_also_the_servers_own() -> None:
    # Nobody listens on the discard port: enough to start, and for probes to fail.
    members = ["--render", "http://127.0.0.1:9", "--decode", "http://127.0.0.1:9"]
    command = [sys.executable, "-c", "from orchestrator.cli import main; main()", "serve", *members]
    with subprocess.Popen(
        [*command, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Uvicorn running" in line:
                process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert process.stderr.read() == ""
    events = [json.loads(line) for line in lines]
    assert {"orchestrator started", "Shutting down"} <= {event["event"] for event in events}
    assert all({"level", "timestamp"} <= set(event) for event in events)
