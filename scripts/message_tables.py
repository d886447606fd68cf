"""Messages as Markdown: fields, types, bounds and defaults of pydantic models and msgspec structs."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel

Model = type[BaseModel] | type[msgspec.Struct]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def sections(models: Iterable[Model], written: set[str]) -> Iterator[str]:
    """Each model with what it is made of; what is in ``written`` has a section already."""
    for model in models:
        if model.__name__ in written:
            continue
        written.add(model.__name__)
        rows = [row(field) for field in fields_of(model)]
        yield f"### {model.__name__}\n\n{about(model)}{table(('field', 'type', 'default', ''), rows)}\n"
        parts: dict[Model, None] = {}
        for field in fields_of(model):
            collect(field.type, parts)
        yield from sections(parts, written)


@dataclass(frozen=True)
class Field:
    name: str
    type: Any
    bounds: tuple[Any, ...]
    default: str
    text: str


def fields_of(model: Model) -> Iterator[Field]:
    texts = field_texts(model)
    if issubclass(model, BaseModel):
        for name, info in model.model_fields.items():
            made = info.get_default(call_default_factory=True)
            default = "required" if info.is_required() else shown(made)
            yield Field(
                info.alias or name, info.annotation, tuple(info.metadata), default, texts.get(name, "")
            )
        return
    if model.__struct_config__.tag is not None:
        config = model.__struct_config__
        yield Field(str(config.tag_field), Literal[config.tag], (), "required", "")
    for one in msgspec.structs.fields(model):
        made = one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()
        default = "required" if one.required else shown(made)
        yield Field(one.encode_name, one.type, (), default, texts.get(one.name, ""))


def shown(value: Any) -> str:
    """A default as JSON; nothing for a field that is left out."""
    if value is msgspec.UNSET or isinstance(value, msgspec.Raw):
        return ""
    if isinstance(value, BaseModel | msgspec.Struct):
        return type(value).__name__
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def row(field: Field) -> tuple[str, str, str, str]:
    return f"`{field.name}`", typed(field.type) + bounded(field.bounds), field.default, field.text


PLAIN: Mapping[Any, str] = {
    type(None): "null",
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    dict: "object",
    Any: "any",
    object: "any",
    msgspec.Raw: "any",
    list: "array",
}


def typed(kind: Any) -> str:
    """A Python type as what it is in JSON."""
    if kind in PLAIN:
        return PLAIN[kind]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return typed(arguments[0]) + bounded(arguments[1:])
    if origin is Literal:
        return ", ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(typed(one) for one in arguments if one is not msgspec.UnsetType))
    if origin is dict:
        return "object" if arguments[1] is Any else f"object of {typed(arguments[1])}"
    if origin is tuple and Ellipsis not in arguments:
        return f"[{', '.join(map(typed, arguments))}]"
    if origin in (list, tuple, Sequence):
        return "array" if arguments[0] is Any else f"array of {typed(arguments[0])}"
    if isinstance(kind, type):
        return kind.__name__
    raise TypeError(f"how is {kind!r} shown?")


def bounded(metadata: Iterable[Any]) -> str:
    """What an annotation says of a number's or a text's bounds."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "length ≥", "max_length": "length ≤"}
    found = [
        f"{sign} {value}"
        for one in metadata
        for name, sign in signs.items()
        if isinstance(value := getattr(one, name, None), int | float)
    ]
    return f" ({', '.join(found)})" if found else ""


def collect(kind: Any, found: dict[Model, None]) -> None:
    """The models in a type, in their order."""
    if isinstance(kind, type) and issubclass(kind, BaseModel | msgspec.Struct):
        found[kind] = None
    for one in get_args(kind):
        collect(one, found)


def about(model: Model) -> str:
    """Its docstring, where it has one of its own."""
    text = vars(model).get("__doc__") or ""
    text = " ".join(text.split()).replace("``", "`")
    return f"{text}\n\n" if text and not text.startswith(f"{model.__name__}(") else ""


def field_texts(model: Model) -> dict[str, str]:
    """The docstrings behind fields."""
    texts: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not cls.__module__.startswith("render_tier."):
            continue
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in itertools.pairwise(tree.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                    texts[name] = " ".join(words.split()).replace("``", "`").replace("|", "\\|")
    return texts
