"""The formats of each tool parser.

Data, taken from the parsers' own patterns and from chat templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .formats import PLAMO, THINK, Format
from .writers import (
    arguments_only,
    between_signs,
    function_gemma,
    gemma,
    json_call,
    keyed_call,
    plain_text,
    plain_xml,
    pythonic,
    scalars,
    tags,
)

_KINDS = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    list: "array",
    dict: "object",
}
_TAGS = ("<tool_call>", "</tool_call>")
_HERMES = Format(
    _TAGS, lambda call: f"<tool_call>\n{json_call()(call)}\n</tool_call>", between="\n"
)
_QWEN_CALL = tags(
    "<tool_call>\n<function=NAME>\n",
    "<parameter=KEY>\nVALUE\n</parameter>\n",
    "</function>\n</tool_call>",
)
_QWEN = Format((*_TAGS, *THINK), _QWEN_CALL, between="\n", limit=plain_text)
_ARGUMENT = "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n"
_GLM = Format(
    (*_TAGS, *THINK, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    tags("<tool_call>NAME\n", _ARGUMENT, "</tool_call>"),
    between="\n",
    limit=plain_text,
    options={"enable_thinking": False},
)
_DEEPSEEK = tuple(
    f"<｜tool▁{part}｜>" for part in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep")
)
_STEP = tuple(
    f"<｜tool_{part}｜>" for part in ("calls_begin", "calls_end", "call_begin", "call_end", "sep")
)
_KIMI = tuple(
    f"<|tool_{part}|>"
    for part in (
        "calls_section_begin",
        "calls_section_end",
        "call_begin",
        "call_end",
        "call_argument_begin",
    )
)


def _dsml(space: str, group: str) -> Format:
    mark = f"｜DSML｜{space}"
    return Format(
        ("｜DSML｜", *THINK),
        tags(
            f'<{mark}invoke name="NAME">\n',
            f'<{mark}parameter name="KEY" string="STRING">VALUE</{mark}parameter>\n',
            f"</{mark}invoke>\n",
        ),
        before=f"<{mark}{group}>\n",
        after=f"</{mark}{group}>",
        limit=plain_text,
    )


_HUNYUAN = tuple(
    f"<{end}{part}>"
    for part in ("tool_calls", "tool_call", "arg_key", "arg_value")
    for end in ("", "/")
)
_HY_ARGUMENT = "<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>"
_K2 = tuple(
    f"<{end}ifm|{part}>"
    for part in ("tool_calls", "tool_call", "arg_key", "arg_type", "arg_value")
    for end in ("", "/")
)


def _k2(kind: str, name: str) -> Format:
    return Format(
        (*_K2, "<ifm|think>", "</ifm|think>"),
        tags(
            "<ifm|tool_call>NAME\n",
            f"<ifm|arg_key>KEY</ifm|arg_key>{kind}<ifm|arg_value>VALUE</ifm|arg_value>\n",
            "</ifm|tool_call>",
            {**_KINDS, int: "integer"},
        ),
        *("<ifm|tool_calls>\n", "\n", "\n</ifm|tool_calls>"),
        plain_text,
        options={"tool_call_format": name},
    )


_M3 = "]<]minimax[>["
_MUSE = Format(
    ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    tags(
        '<|start|>assistant to=NAME<|message|><atem:function_calls>\n<atem:invoke name="NAME">\n',
        '<atem:parameter name="KEY">VALUE</atem:parameter>\n',
        "</atem:invoke>\n</atem:function_calls><|eom|>",
    ),
    limit=plain_text,
    content=False,
    plain=False,
)
TOOL_FORMATS: Mapping[str, tuple[Format, ...]] = MappingProxyType(
    {
        "apertus": (
            Format(
                ("<|tools_prefix|>", "<|tools_suffix|>"),
                keyed_call,
                "<|tools_prefix|>[",
                ", ",
                "]<|tools_suffix|>",
            ),
        ),
        "deepseek_v3": (
            Format(
                _DEEPSEEK,
                arguments_only(
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```<｜tool▁call▁end｜>"
                ),
                *("<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"),
            ),
        ),
        "deepseek_v31": (
            Format(
                _DEEPSEEK,
                arguments_only(
                    "<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>"
                ),
                *("<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"),
            ),
        ),
        "deepseek_v32": (_dsml("", "function_calls"),),
        "deepseek_v4": (_dsml("", "tool_calls"),),
        "deepseek_v41": (_dsml(" ", "calls"),),
        "dots": (
            Format(
                ("<dots_function_call>", "</dots_function_call>"),
                tags(
                    '<invoke name="NAME">\n',
                    '<parameter name="KEY">VALUE</parameter>\n',
                    "</invoke>\n",
                ),
                *("<dots_function_call>\n", "", "</dots_function_call>"),
                plain_text,
            ),
        ),
        "ernie45": (
            Format(
                (*_TAGS, *THINK, "<response>", "</response>", "<0x0A>"),
                lambda call: f"<tool_call>\n{json_call()(call)}\n</tool_call>\n",
                content=False,
            ),
        ),
        "functiongemma": (
            Format(
                ("<start_function_call>", "<end_function_call>", "<escape>"),
                function_gemma,
                limit=between_signs,
            ),
        ),
        "gemma4": (
            Format(
                ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>"),
                gemma,
                limit=between_signs,
            ),
        ),
        "gigachat3": (
            Format(
                ("<|function_call|>", "<|role_sep|>", "<|message_sep|>"),
                lambda call: f"<|function_call|>{json_call()(call)}",
                several=False,
            ),
        ),
        "glm45": (_GLM,),
        "glm47": (_GLM,),
        "granite": (
            Format(("<|tool_call|>",), json_call(), "<|tool_call|>[", ", ", "]", content=False),
        ),
        "granite-20b-fc": (
            Format(
                ("<function_call>",),
                lambda call: f"<function_call> {json_call()(call)}",
                between="\n",
            ),
        ),
        "granite4": (
            Format(
                _TAGS, lambda call: f"<tool_call>\n{json_call()(call)}\n</tool_call>", between="\n"
            ),
        ),
        "hermes": (_HERMES,),
        "hunyuan_a13b": (Format(THINK, json_call(), "<tool_calls>[", ", ", "]</tool_calls>"),),
        "hy_v3": (
            Format(
                (*_HUNYUAN, "<tool_sep>"),
                tags("<tool_call>NAME<tool_sep>", _HY_ARGUMENT, "</tool_call>"),
                *("<tool_calls>", "", "</tool_calls>"),
                plain_text,
            ),
        ),
        "hy_v4": (
            Format(
                _HUNYUAN,
                tags("<tool_call>NAME", _HY_ARGUMENT, "</tool_call>"),
                "<tool_calls>",
                "",
                "</tool_calls>",
                plain_text,
            ),
        ),
        "inkling": (
            Format(
                (
                    "<|message_model|>",
                    "<|content_text|>",
                    "<|content_thinking|>",
                    "<|content_invoke_tool_json|>",
                    "<|end_message|>",
                    "<|content_invoke_tool_text|>",
                    "<|content_tool_error|>",
                    "<|content_model_end_sampling|>",
                ),
                lambda call: (
                    f"<|message_model|><|content_invoke_tool_json|>{json_call('args')(call)}<|end_message|>"
                ),
                content=False,
                plain=False,
            ),
        ),
        "internlm": (
            Format(
                ("<|action_start|>", "<|plugin|>", "<|action_end|>"),
                lambda call: (
                    f"<|action_start|><|plugin|>\n{json_call('parameters')(call)}<|action_end|>"
                ),
                several=False,
            ),
        ),
        "jamba": (
            Format(
                ("<tool_calls>", "</tool_calls>"),
                json_call(),
                "<tool_calls>[",
                ", ",
                "]</tool_calls>",
            ),
        ),
        "k2_horizon": (_k2("<ifm|arg_type>KIND</ifm|arg_type>", "xml_typed"), _k2("", "xml")),
        "kimi_k2": (
            Format(
                (*_KIMI, *THINK),
                arguments_only(
                    "<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|>"
                ),
                *("<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"),
                options={"thinking": False},
            ),
        ),
        "kimi_k3": (
            Format(
                ("<|open|>", "<|close|>", "<|sep|>"),
                tags(
                    '<|open|>call tool="NAME" index="INDEX"<|sep|>',
                    '<|open|>argument key="KEY" type="KIND"<|sep|>VALUE<|close|>argument<|sep|>',
                    "<|close|>call<|sep|>",
                    _KINDS,
                ),
                *("<|open|>tools<|sep|>", "", "<|close|>tools<|sep|>"),
                between_signs,
                content=False,
                plain=False,
            ),
        ),
        "lfm2": (
            Format(
                ("<|tool_call_start|>", "<|tool_call_end|>"),
                pythonic,
                "<|tool_call_start|>[",
                ", ",
                "]<|tool_call_end|>",
            ),
        ),
        "ling3": (_GLM,),
        "llama3_json": (
            Format(("<|python_tag|>",), json_call("parameters"), between="; ", content=False),
        ),
        "llama4_json": (
            Format(("<|python_tag|>",), json_call("parameters"), between="; ", content=False),
        ),
        "llama4_pythonic": (
            Format(
                ("<|python_start|>", "<|python_end|>"),
                pythonic,
                "<|python_start|>[",
                ", ",
                "]<|python_end|>",
                content=False,
            ),
        ),
        "longcat": (
            Format(
                ("<longcat_tool_call>", "</longcat_tool_call>"),
                lambda call: f"<longcat_tool_call>\n{json_call()(call)}\n</longcat_tool_call>",
                between="\n",
            ),
        ),
        "mimo": (
            Format(
                (*_TAGS, *THINK),
                tags(
                    "<tool_call>\n<function=NAME>\n",
                    "<parameter=KEY>VALUE</parameter>\n",
                    "</function>\n</tool_call>",
                ),
                between="\n",
                limit=plain_text,
            ),
        ),
        "minicpm5": (
            Format(
                ("<function", "</function>", "<param", "</param>"),
                tags('<function name="NAME">', '<param name="KEY">VALUE</param>', "</function>"),
                between="\n",
                limit=plain_xml,
            ),
        ),
        "minimax": (
            Format(
                ("<tool_calls>", "</tool_calls>", *THINK),
                json_call(),
                "<tool_calls>\n",
                "\n",
                "\n</tool_calls>",
            ),
        ),
        "minimax_m2": (
            Format(
                ("<minimax:tool_call>", "</minimax:tool_call>", *THINK),
                tags(
                    '<invoke name="NAME">\n',
                    '<parameter name="KEY">VALUE</parameter>\n',
                    "</invoke>\n",
                ),
                *("<minimax:tool_call>\n", "", "</minimax:tool_call>"),
                plain_text,
            ),
        ),
        "minimax_m3": (
            Format(
                (_M3, "<mm:think>", "</mm:think>"),
                tags(
                    f'{_M3}<invoke name="NAME">\n',
                    f"{_M3}<KEY>VALUE{_M3}</KEY>\n",
                    f"{_M3}</invoke>\n",
                ),
                *(f"{_M3}<tool_call>\n", "", f"{_M3}</tool_call>"),
                scalars,
            ),
        ),
        "mistral": (
            Format(("[TOOL_CALLS]",), json_call(), "[TOOL_CALLS][", ", ", "]"),
            Format(
                ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
                arguments_only("[TOOL_CALLS]NAME[ARGS]ARGUMENTS"),
            ),
        ),
        "muse": (_MUSE,),
        "muse_glimmer": (_MUSE,),
        "olmo3": (
            Format((), pythonic, "<function_calls>\n", "\n", "\n</function_calls>", content=False),
        ),
        "phi4_mini_json": (Format((), json_call(), "functools[", ", ", "]", content=False),),
        "plamo3": (
            Format(
                PLAMO,
                arguments_only(
                    "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>NAME<|plamo:end_tool_name:plamo|>"
                    "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>ARGUMENTS"
                    "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
                ),
                *("<|plamo:begin_tool_requests:plamo|>", "", "<|plamo:end_tool_requests:plamo|>"),
            ),
        ),
        "poolside_v1": (_GLM,),
        "pythonic": (Format((), pythonic, "[", ", ", "]", content=False),),
        "qwen3_coder": (_QWEN,),
        "qwen3_json": (_HERMES,),
        "qwen3_xml": (_QWEN,),
        "seed_oss": (
            Format(
                ("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>"),
                tags(
                    "<seed:tool_call>\n<function=NAME>\n",
                    "<parameter=KEY>VALUE</parameter>\n",
                    "</function>\n</seed:tool_call>",
                ),
                between="\n",
                limit=plain_text,
            ),
        ),
        "step3": (
            Format(
                _STEP,
                tags(
                    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME">',
                    '<steptml:parameter name="KEY">VALUE</steptml:parameter>',
                    "</steptml:invoke><｜tool_call_end｜>",
                ),
                *("<｜tool_calls_begin｜>", "", "<｜tool_calls_end｜>"),
                plain_text,
            ),
        ),
        "step3p5": (_QWEN,),
        "step5": (_QWEN,),
        "xlam": (Format((), json_call(), "[", ", ", "]", content=False),),
    }
)
"""The formats of each tool parser."""
