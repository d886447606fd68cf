"""``render-tier serve MODEL``: one flag for every setting, named as in vLLM where vLLM has it.

Values come from flags, else from a ``--config`` TOML file, else from the defaults in `settings`.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import sys
import tomllib
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from render_tier import __version__
from render_tier.settings import Settings
from render_tier.tls_files import UnusableFile, check_authorities, check_identity

API_KEY_VARIABLES = ("RENDER_TIER_API_KEY", "VLLM_API_KEY")
STATE_KEYS_VARIABLE = "RENDER_TIER_STATE_KEYS"
"""Several are separated by commas."""
EXIT_USAGE = 2

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)


@app.callback()
def _root() -> None:
    """Render tier: OpenAI requests to token IDs, and token IDs back to OpenAI responses."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _serve(**given: Any) -> None:
    try:
        settings = settings_from(given)
        check_files(settings)
    except ValidationError as error:
        for fault in error.errors():
            flag = ".".join(str(part) for part in fault["loc"]) or "settings"
            typer.echo(f"{flag}: {fault['msg']}", err=True)
        raise typer.Exit(EXIT_USAGE) from None
    except (OSError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_USAGE) from None
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Until the model is loaded nothing becomes garbage; the server turns the collector on when it is.
    gc.disable()
    from render_tier.model import ModelLoadError
    from render_tier.server.shared_metrics import shared_metrics

    with shared_metrics(settings.workers):
        from render_tier.server.logs import configure_logging
        from render_tier.server.processes import EXIT_LOAD_FAILED, serve

        configure_logging(settings)
        try:
            code = serve(settings)
        except ModelLoadError as error:
            typer.echo(str(error), err=True)
            code = EXIT_LOAD_FAILED
    raise typer.Exit(code)


def check_files(settings: Settings) -> None:
    """Those of TLS. Raises ``ValueError``, which names flag and file."""
    try:
        if settings.ssl_certfile is not None:
            check_identity(settings.ssl_certfile, settings.ssl_keyfile)
    except UnusableFile as error:
        raise ValueError(f"--ssl-certfile, --ssl-keyfile: {error}") from error
    try:
        if settings.ssl_ca_certs is not None:
            check_authorities(settings.ssl_ca_certs)
    except UnusableFile as error:
        raise ValueError(f"--ssl-ca-certs: {error}") from error


def settings_from(given: dict[str, Any]) -> Settings:
    """Settings from parsed flags (None: not given), the config file they name, and the environment's keys.

    Raises ValidationError for a value, ValueError or OSError for a file that cannot be read.
    """
    flags = {name: value for name, value in given.items() if value is not None and value != []}
    path = flags.pop("config", None)
    values: dict[str, Any] = {}
    if path is not None:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    values.update(flags)
    if not values.get("api_key"):
        key = next((os.environ[name] for name in API_KEY_VARIABLES if os.environ.get(name)), None)
        if key is not None:
            values["api_key"] = [key]
    if not values.get("state_key") and (keys := os.environ.get(STATE_KEYS_VARIABLE)):
        values["state_key"] = [key.strip() for key in keys.split(",")]
    for name, field in Settings.model_fields.items():
        if _is_json(field) and isinstance(values.get(name), str):
            try:
                values[name] = json.loads(values[name])
            except ValueError as error:
                raise ValueError(f"{_flag(name)} takes a JSON object: {error}") from None
    return Settings.model_validate(values)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _is_json(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is dict


def _is_list(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is tuple


def _option_type(field: FieldInfo) -> Any:
    annotation: Any = field.annotation
    if isinstance(annotation, UnionType):
        annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
    if _is_list(field):
        return list[str] | None
    if _is_json(field) or get_origin(annotation) is Literal:
        return str | None
    return annotation | None


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    if field.is_required():
        annotation: Any = Annotated[str | None, typer.Argument(help=field.description)]
        return inspect.Parameter(name, kind, default=None, annotation=annotation)
    help_text = f"{field.description} [default: {field.default!r}]"
    choices = "|".join(get_args(field.annotation)) if get_origin(field.annotation) is Literal else None
    flag = _flag(name) + ("/--no-" + name.replace("_", "-") if field.annotation is bool else "")
    option = typer.Option(flag, help=help_text, metavar=choices, show_default=False)
    return inspect.Parameter(name, kind, default=None, annotation=Annotated[_option_type(field), option])


def _add_serve() -> None:
    parameters = [_parameter(name, field) for name, field in Settings.model_fields.items()]
    config = Annotated[str | None, typer.Option("--config", help="TOML file with settings as keys.")]
    parameters.append(
        inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=config)
    )
    _serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    _serve.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command("serve", help="Serve MODEL: render, derender, tokenize.")(_serve)


def _spread_lists(arguments: list[str]) -> list[str]:
    """``--served-model-name a b`` (vLLM's form) as repeated flags."""
    lists = {_flag(name) for name, field in Settings.model_fields.items() if _is_list(field)}
    spread: list[str] = []
    current: str | None = None
    awaiting_first = False
    for argument in arguments:
        if argument.startswith("--"):
            current = argument if argument in lists else None
            awaiting_first = current is not None
            spread.append(argument)
        elif current is None or awaiting_first:
            awaiting_first = False
            spread.append(argument)
        else:
            spread += [current, argument]
    return spread


_add_serve()


def main() -> None:
    """Entry point of the ``render-tier`` command."""
    app(args=_spread_lists(sys.argv[1:]))
