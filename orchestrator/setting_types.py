"""What settings are made of: sections that refuse unknown keys, and the kinds of their values."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_BASE_URL = re.compile(r"https?://[^/?#]+(/[^?#]*)?")


def _base_url(value: str) -> str:
    if not _BASE_URL.fullmatch(value):
        raise ValueError("must be an http or https URL without a query, like http://10.0.0.1:8000")
    return value


Url = Annotated[str, AfterValidator(_base_url)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Scheme = Literal["http", "https"]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
