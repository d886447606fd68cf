"""The model families by their vLLM parser names; one module each."""

from __future__ import annotations

from typing import Final

from render_tier.core.formats.apertus import APERTUS
from render_tier.core.formats.deepseek_r1 import DEEPSEEK_R1
from render_tier.core.formats.deepseek_v3 import DEEPSEEK_V3
from render_tier.core.formats.deepseek_v3_reasoning import DEEPSEEK_V3_REASONING
from render_tier.core.formats.deepseek_v4 import DEEPSEEK_V4, DEEPSEEK_V4_REASONING
from render_tier.core.formats.deepseek_v31 import DEEPSEEK_V31
from render_tier.core.formats.deepseek_v32 import DEEPSEEK_V32
from render_tier.core.formats.ernie45 import ERNIE45, ERNIE45_REASONING
from render_tier.core.formats.functiongemma import FUNCTIONGEMMA
from render_tier.core.formats.gemma4 import GEMMA4, GEMMA4_REASONING
from render_tier.core.formats.glm47 import GLM47, GLM47_REASONING
from render_tier.core.formats.granite import GRANITE, GRANITE_REASONING
from render_tier.core.formats.granite4 import GRANITE4
from render_tier.core.formats.granite_thinking import GRANITE_THINKING
from render_tier.core.formats.hermes import HERMES
from render_tier.core.formats.hunyuan_a13b import HUNYUAN_A13B, HUNYUAN_A13B_REASONING
from render_tier.core.formats.internlm import INTERNLM
from render_tier.core.formats.jamba import JAMBA
from render_tier.core.formats.kimi_k2 import KIMI_K2, KIMI_K2_REASONING
from render_tier.core.formats.lfm2 import LFM2
from render_tier.core.formats.llama3_json import LLAMA3_JSON
from render_tier.core.formats.longcat import LONGCAT
from render_tier.core.formats.mimo import MIMO, MIMO_REASONING
from render_tier.core.formats.minimax_m2 import MINIMAX_M2, MINIMAX_M2_APPEND_THINK, MINIMAX_M2_REASONING
from render_tier.core.formats.mistral import MISTRAL, MISTRAL_REASONING
from render_tier.core.formats.nemotron_v3 import NEMOTRON_V3
from render_tier.core.formats.olmo3 import OLMO3, OLMO3_REASONING
from render_tier.core.formats.openai import OPENAI, OPENAI_GPTOSS
from render_tier.core.formats.phi4_mini_json import PHI4_MINI_JSON
from render_tier.core.formats.plain import PLAIN
from render_tier.core.formats.pythonic import LLAMA4_PYTHONIC, PYTHONIC
from render_tier.core.formats.qwen3 import QWEN3
from render_tier.core.formats.qwen3_coder import QWEN3_CODER
from render_tier.core.formats.seed_oss import SEED_OSS, SEED_OSS_REASONING
from render_tier.core.formats.step3p5 import STEP3P5, STEP3P5_REASONING
from render_tier.core.formats.xlam import XLAM
from render_tier.core.prompt_state import prompt_reasoning, starts_with_reasoning
from render_tier.core.table import ReasoningFormat, ToolFormat

__all__ = [
    "PLAIN",
    "REASONING_NAMES",
    "TOOL_NAMES",
    "ReasoningFormat",
    "ToolFormat",
    "UnknownFormat",
    "prompt_reasoning",
    "reasoning_format",
    "register",
    "starts_with_reasoning",
    "tool_format",
]

_REASONING_FORMATS: Final = (
    DEEPSEEK_R1,
    DEEPSEEK_V3_REASONING,
    DEEPSEEK_V4_REASONING,
    ERNIE45_REASONING,
    GEMMA4_REASONING,
    GLM47_REASONING,
    GRANITE_REASONING,
    GRANITE_THINKING,
    HUNYUAN_A13B_REASONING,
    KIMI_K2_REASONING,
    MIMO_REASONING,
    MINIMAX_M2_APPEND_THINK,
    MINIMAX_M2_REASONING,
    MISTRAL_REASONING,
    NEMOTRON_V3,
    OLMO3_REASONING,
    OPENAI_GPTOSS,
    QWEN3,
    SEED_OSS_REASONING,
    STEP3P5_REASONING,
)
_TOOL_FORMATS: Final = (
    APERTUS,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    ERNIE45,
    FUNCTIONGEMMA,
    GEMMA4,
    GLM47,
    GRANITE,
    GRANITE4,
    HERMES,
    HUNYUAN_A13B,
    INTERNLM,
    JAMBA,
    KIMI_K2,
    LFM2,
    LLAMA3_JSON,
    LLAMA4_PYTHONIC,
    LONGCAT,
    MIMO,
    MINIMAX_M2,
    MISTRAL,
    OLMO3,
    OPENAI,
    PHI4_MINI_JSON,
    PYTHONIC,
    QWEN3_CODER,
    SEED_OSS,
    STEP3P5,
    XLAM,
)
_REASONING: Final[dict[str, ReasoningFormat]] = {
    name: fmt for fmt in _REASONING_FORMATS for name in (fmt.name, *fmt.aliases)
}
_TOOLS: Final[dict[str, ToolFormat]] = {
    name: fmt for fmt in _TOOL_FORMATS for name in (fmt.name, *fmt.aliases)
}

REASONING_NAMES: Final = tuple(sorted(_REASONING))
TOOL_NAMES: Final = tuple(sorted(_TOOLS))


class UnknownFormat(KeyError):
    """A parser name that has no table; the message lists those that do."""

    def __str__(self) -> str:
        return str(self.args[0])


def register(fmt: ReasoningFormat | ToolFormat) -> None:
    """Add a user's own format under its name and aliases, for every later look-up. One that was registered
    before is replaced. Raises ValueError for a name of this package's."""
    built_in = REASONING_NAMES if isinstance(fmt, ReasoningFormat) else TOOL_NAMES
    for name in (fmt.name, *fmt.aliases):
        if name in built_in or name == "auto":
            raise ValueError(f"{name!r} is the name of a parser that exists")
        if isinstance(fmt, ReasoningFormat):
            _REASONING[name] = fmt
        else:
            _TOOLS[name] = fmt


def reasoning_format(name: str) -> ReasoningFormat:
    """The reasoning table of a vLLM ``--reasoning-parser`` name. Raises UnknownFormat."""
    try:
        return _REASONING[name]
    except KeyError:
        valid = ", ".join(sorted(_REASONING))
        raise UnknownFormat(f"unknown reasoning parser {name!r}; valid names: {valid}") from None


def tool_format(name: str) -> ToolFormat:
    """The tool table of a vLLM ``--tool-call-parser`` name. Raises UnknownFormat."""
    try:
        return _TOOLS[name]
    except KeyError:
        valid = ", ".join(sorted(_TOOLS))
        raise UnknownFormat(f"unknown tool call parser {name!r}; valid names: {valid}") from None
