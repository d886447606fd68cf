"""``pd-orchestrator key``: a new API key, and the line that is stored of it."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from orchestrator.core.keys import RANDOM_BYTES, new_key


def key(
    name: Annotated[str, typer.Argument(help="Stands for the key in settings and logs.")],
    tenant: Annotated[str | None, typer.Option(help="Whose it is; the name by default.")] = None,
) -> None:
    """Make an API key. The key itself is shown once, on standard error; standard output is what to add to
    auth.keys or to the file of keys, from which the key cannot be had back."""
    shown, stored = new_key(secrets.token_bytes(RANDOM_BYTES))
    typer.echo(f"The key, for its owner; it is stored nowhere:\n{shown}", err=True)
    lines = ["[[keys]]", f"name = {_quoted(name)}", f"hash = {_quoted(stored.line())}"]
    if tenant is not None:
        lines.append(f"tenant = {_quoted(tenant)}")
    typer.echo("\n".join(lines))


def _quoted(text: str) -> str:
    """As a string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    if not escaped.isprintable():
        raise typer.BadParameter("only printable characters")
    return f'"{escaped}"'
