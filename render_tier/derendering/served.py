"""What derendering needs to know of the served model; `model.ModelAssets` is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from render_tier.core.vocabulary import Vocabulary
from render_tier.protocol.errors import BadRequest, NotFound
from render_tier.protocol.validation import misshapen


class ServedModel(Protocol):
    """See `model.ModelAssets` for the meaning of the attributes."""

    @property
    def served_names(self) -> tuple[str, ...]: ...
    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def generation_config(self) -> Mapping[str, Any]: ...


def served_name(model: ServedModel, asked: str | None) -> str:
    """The name to answer with. Raises NotFound for a model that is not served."""
    if not asked:
        return model.served_names[0]
    if asked not in model.served_names:
        valid = ", ".join(model.served_names)
        raise NotFound(f"The model `{asked}` does not exist. Valid aliases: {valid}.", param="model")
    return asked


def check_ids(model: ServedModel, token_ids: list[int], param: str) -> None:
    """Raises BadRequest for an ID outside the model's vocabulary."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < model.vocab_size):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < model.vocab_size)
        if wrong < 0:
            message = f"{param} must not contain negative values"
            raise misshapen([{"type": "value_error", "loc": tuple(param.split(".")), "msg": message}])
        raise BadRequest(f"{param}: token id {wrong} is out of vocabulary ({model.vocab_size})", param=param)
