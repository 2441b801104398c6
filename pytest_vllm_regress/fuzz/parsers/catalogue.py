"""The formats of each reasoning parser, and all formats by the names of parsers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .formats import PLAMO, THINK, Format
from .tool_formats import TOOL_FORMATS


def _thinking(begin: str, end: str, **options: object) -> tuple[Format, ...]:
    return (Format((begin, end), thinking=(begin, end), options=options),)


_PLAIN_THINK = _thinking(*THINK)
REASONING_FORMATS: Mapping[str, tuple[Format, ...]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "deepseek_r1",
                "glm45",
                "glm47",
                "ling3",
                "hunyuan_a13b",
                "mimo",
                "minicpmv",
                "nemotron_v3",
                "step3",
                "step3p5",
                "step5",
                "granite_thinking_parser",
                "poolside_v1",
                "minimax_m2",
                "olmo3",
            ),
            _PLAIN_THINK,
        ),
        **dict.fromkeys(
            ("deepseek_v3", "deepseek_v4", "deepseek_v41", "kimi_k2", "holo2"), _thinking(*THINK, thinking=True)
        ),
        "qwen3": _thinking(*THINK, enable_thinking=True),
        "ernie45": (Format((*THINK, "<response>", "</response>", "<0x0A>"), thinking=("<think>", "</think>\n\n")),),
        "gemma4": (
            Format(
                ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
                thinking=("<|channel>thought\n", "<channel|>"),
                options={"enable_thinking": True},
            ),
        ),
        "granite": (Format((), thinking=("Here is my thought process:", "Here is my response:")),),
        "hy_v3": _thinking(*THINK, reasoning_effort="high"),
        "hy_v4": _thinking(*THINK, reasoning_effort="high"),
        "k2_horizon": _thinking("<ifm|think>", "</ifm|think>"),
        "minimax_m3": _thinking("<mm:think>", "</mm:think>", thinking=True),
        "mistral": _thinking("[THINK]", "[/THINK]"),
        "plamo3": (
            Format(
                PLAMO,
                thinking=("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
                options={"enable_thinking": True},
            ),
        ),
        "seed_oss": _thinking("<seed:think>", "</seed:think>"),
    }
)
"""The formats of each reasoning parser."""


def formats_of(kind: str, name: str) -> tuple[Format, ...]:
    """Return the formats of a ``tool`` or ``reasoning`` parser; empty if no writer is known."""
    return (TOOL_FORMATS if kind == "tool" else REASONING_FORMATS).get(name, ())
