"""The ``pd-orchestrator`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from orchestrator import __version__
from orchestrator.core.parity import Role
from orchestrator.demo.cli import demo
from orchestrator.embedded.cli import engine
from orchestrator.explain_command import explain
from orchestrator.key_command import key
from orchestrator.logs import configure_logging
from orchestrator.plan_command import plan
from orchestrator.server.preflight import check_files
from orchestrator.server.processes import serve as serve_until_told
from orchestrator.settings import ConfigError, Settings, merged, read_config
from orchestrator.status_command import status

app = typer.Typer(
    help="OpenAI endpoint over render, prefill, decode and derender.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Urls = list[str]


@app.command()
def serve(
    render: Annotated[Urls, typer.Option(help="Render tier base URL; repeat for replicas.")] = [],  # noqa: B006
    prefill: Annotated[Urls, typer.Option(help="Prefill engine base URL; none: decode prefills.")] = [],  # noqa: B006
    decode: Annotated[Urls, typer.Option(help="Decode engine base URL.")] = [],  # noqa: B006
    encode: Annotated[Urls, typer.Option(help="Encoder base URL; images go there first.")] = [],  # noqa: B006
    config: Annotated[Path | None, typer.Option(help="TOML, YAML or JSON file; options win over it.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 lets the system choose.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes on the same port.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_format: Annotated[str | None, typer.Option(help="json or console.")] = None,
) -> None:
    """Serve the OpenAI endpoint."""
    server = {
        "host": host,
        "port": port,
        "workers": workers,
        "log_level": log_level,
        "log_format": log_format,
    }
    members = {"render": render, "prefill": prefill, "decode": decode, "encode": encode}
    options: dict[str, Any] = {
        "server": {name: value for name, value in server.items() if value is not None},
        "members": {role: urls for role, urls in members.items() if urls},
    }
    settings = load_settings(config, options)
    configure_logging(settings.server.log_level, settings.server.log_format)
    raise typer.Exit(serve_until_told(settings, lambda: read_settings(config, options)))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def load_settings(config: Path | None, options: dict[str, Any]) -> Settings:
    """Exits with a message for anything that is not a valid setting."""
    try:
        return read_settings(config, options)
    except ConfigError as error:
        typer.echo(f"pd-orchestrator: {error}", err=True)
        raise typer.Exit(2) from error


def read_settings(config: Path | None, options: dict[str, Any]) -> Settings:
    """Defaults, then the file, then the options. Raises ``ConfigError``."""
    try:
        settings = Settings.model_validate(merged(read_config(config) if config else {}, options))
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, fault['loc']))}: {_complaint(fault)}" for fault in error.errors())
        raise ConfigError("; ".join(faults)) from error
    check_files(settings)
    needed: tuple[Role, ...] = ("render", "decode")
    for role in needed:
        if not settings.expects(role) and settings.membership.file is None:
            raise ConfigError(f"no {role} members: give --{role} URL, members.{role} or a membership source")
    return settings


def _complaint(fault: ErrorDetails) -> str:
    """One fault of a setting in a few words."""
    if fault["type"] == "extra_forbidden":
        return "there is no such setting"
    return fault["msg"].removeprefix("Value error, ")


# Their libraries (httpx, numpy, the demo's) are imported only when they run.
app.command()(status)
app.command()(explain)
app.command()(key)
app.command()(plan)
app.command()(engine)
app.command()(demo)


def main() -> None:
    """Entry point of the console script."""
    app()
