"""The formats of each reasoning parser, and all formats by the names of parsers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from .formats import PLAMO, THINK, Format
from .tool_formats import TOOL_FORMATS


def _thinking(begin: str, end: str, **options: object) -> tuple[Format, ...]:
    return (Format((begin, end), thinking=(begin, end), options=options),)


def _begun(begin: str, end: str, **options: object) -> Format:
    """Reasoning that the template begins in the prompt."""
    return Format((begin, end), thinking=("", end), options=options, prompt=f"{begin}\n")


def _without(begin: str, end: str, **options: object) -> Format:
    """An answer without reasoning: the template ends it in the prompt."""
    return Format((begin, end), options=options, prompt=f"{begin}\n\n{end}\n\n")


_PLAIN_THINK = (*_thinking(*THINK), _begun(*THINK))
_ENABLED = (
    *_thinking(*THINK, enable_thinking=True),
    _begun(*THINK, enable_thinking=True),
    _without(*THINK, enable_thinking=False),
)
_CHOSEN = (
    *_thinking(*THINK, thinking=True),
    _begun(*THINK, thinking=True),
    _without(*THINK, thinking=False),
)
REASONING_FORMATS: Mapping[str, tuple[Format, ...]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "deepseek_r1",
                "hunyuan_a13b",
                "step3p5",
                "step5",
                "minimax_m2",
                "olmo3",
            ),
            _PLAIN_THINK,
        ),
        **dict.fromkeys(
            ("qwen3", "mimo", "minicpmv", "nemotron_v3", "granite_thinking_parser", "ling3"),
            _ENABLED,
        ),
        **dict.fromkeys(
            ("deepseek_v3", "deepseek_v4", "deepseek_v41", "kimi_k2", "holo2"), _CHOSEN
        ),
        **dict.fromkeys(
            ("glm45", "glm47"),
            tuple(
                dataclasses.replace(form, tokens=(*form.tokens, "<|assistant|>"))
                for form in _ENABLED
            ),
        ),
        "poolside_v1": tuple(
            dataclasses.replace(form, tokens=(*form.tokens, "<assistant>")) for form in _ENABLED
        ),
        "step3": (_begun(*THINK),),
        "ernie45": (
            Format(
                (*THINK, "<response>", "</response>", "<0x0A>"),
                thinking=("<think>", "</think>\n\n"),
            ),
        ),
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
        "mistral": (
            Format(
                ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"), thinking=("[THINK]", "[/THINK]")
            ),
        ),
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
