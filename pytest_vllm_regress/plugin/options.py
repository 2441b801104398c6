"""The plugin's options: each is described once for the command line and the ini file, and resolved
once into ``Settings``."""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from .. import defaults

if TYPE_CHECKING:
    from ..engines.settings import Settings


class _Option(NamedTuple):
    """An option of ``data/plugin_options.toml``."""

    name: str
    help: str
    metavar: str | None = None
    many: bool = False
    flag: bool = False
    choices: list[str] | None = None
    path: bool = False

    @property
    def flag_name(self) -> str:
        return "--" + self.name.replace("_", "-")


_PHASES = {name.replace("_", "-"): name for name in defaults.TIMEOUTS_S}


def _options() -> tuple[_Option, ...]:
    values = {
        **vars(defaults),
        "MEMORY_PERCENT": 100 * defaults.MEMORY_SHARE,
        "TIMEOUTS": ", ".join(
            f"{phase}={defaults.TIMEOUTS_S[name]:g}" for phase, name in _PHASES.items()
        ),
    }
    # Not by `util.codec`, which is heavy, and every start of pytest reads this file.
    file = Path(__file__).parents[1] / "data" / "plugin_options.toml"
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return tuple(
        _Option(name, **{**table, "help": table["help"].format(**values)})
        for name, table in tables.items()
    )


OPTIONS = _options()


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and its ini twin."""
    group = parser.getgroup("vllm-regress", "vLLM regression harness")
    group.addoption("--vllm-impostors", metavar="FOLDER", help=argparse.SUPPRESS)
    for option in OPTIONS:
        if option.flag:
            how: dict[str, Any] = {"action": "store_const", "const": True}
        else:
            action = "append" if option.many else "store"
            how = {"action": action, "metavar": option.metavar, "choices": option.choices}
        # argparse formats the help with "%".
        text = option.help.replace("%", "%%")
        group.addoption(option.flag_name, dest=option.name, default=None, help=text, **how)
        kind = "bool" if option.flag else "args" if option.many else "string"
        parser.addini(option.name, option.help, type=kind, default=None)  # type: ignore[arg-type]


def warn_of_path_as_argument(config: pytest.Config) -> None:
    """Warn if pytest took the value of an option for a test path and looked for its rootdir and ini
    file there.

    It does so before plugins are loaded, for ``--option PATH`` but not for ``--option=PATH``.
    """
    invocation = config.invocation_params
    elsewhere = not invocation.dir.is_relative_to(config.rootpath)
    if hasattr(config, "workerinput") or (config.inipath is not None and not elsewhere):
        return
    flags = {option.flag_name for option in OPTIONS if option.path}
    for flag, value in itertools.pairwise(map(str, invocation.args)):
        path = Path(os.path.abspath(invocation.dir / value))
        if (
            flag in flags
            and path.exists()
            and (elsewhere or not path.is_relative_to(invocation.dir))
        ):
            config.issue_config_time_warning(
                pytest.PytestConfigWarning(
                    f"pytest took the value of {flag} for a path of tests, and its rootdir is {config.rootpath} with "
                    f"{f'the ini file {config.inipath}' if config.inipath else 'no ini file'}. Write {flag}={value}"
                ),
                stacklevel=2,
            )


def any_set(config: pytest.Config) -> bool:
    """Return whether any option is set, on the command line or in the ini file."""
    return any(_value(config, option.name) for option in OPTIONS)


def resolve(config: pytest.Config) -> Settings:
    """Resolve the options; the command line wins over the ini file.

    A bad value or a missing GPU is a ``pytest.UsageError`` that names its source.
    """
    from ..engines.settings import Limits, Settings, Timeouts
    from ..errors import UsageError
    from ..util.files import expand_home
    from ..util.sizes import GIB, MIB

    value, number = functools.partial(_value, config), functools.partial(_number, config)
    default = Settings()
    device = value("vllm_device") or default.device
    if value("vllm_gpu"):
        if device not in ("auto", "gpu"):
            raise pytest.UsageError(
                f"--vllm-gpu and --vllm-device {device} contradict each other: give one of them"
            )
        device = "gpu"
    report, model = value("vllm_report"), value("vllm_model")
    places, index = value("vllm_source"), value("vllm_wheel_index")
    try:
        if places or index:  # the import takes time
            from ..environments import sources

            sources.set_clones(places or ())
            if index:
                sources.set_wheel_index(index)
        if device == "gpu":
            from ..engines.gpus.visible import usable

            usable()
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    return Settings(
        environments=tuple(dict.fromkeys(value("vllm_env") or ())),
        device=device,
        model=str(expand_home(model)) if model and model.startswith("~") else model,
        timeouts=Timeouts(**_timeouts(config)),
        fail_on_known=bool(value("vllm_fail_on_known")),
        report=expand_home(report) if report else None,
        leftovers=value("vllm_leftovers") or default.leftovers,
        max_engines=int(number("vllm_max_engines", defaults.MAX_ENGINES)),
        limits=Limits(
            session_s=number("vllm_session_timeout", 0.0) or None,
            memory_bytes=number("vllm_max_memory", 0.0) * GIB or None,
            processes=int(number("vllm_max_processes", defaults.MAX_PROCESSES)),
            log_bytes=number("vllm_max_log", defaults.MAX_LOG_MIB) * MIB,
        ),
        start_method=value("vllm_start_method") or default.start_method,
        minimize=bool(value("vllm_minimize")),
        gpu_wait_s=number("vllm_gpu_wait", defaults.GPU_WAIT_S),
        full_deadlines=bool(value("vllm_full_deadlines")),
    )


def _value(config: pytest.Config, name: str):  # type: ignore[no-untyped-def]  # the type is the option's
    from_command_line = config.getoption(name, None)
    if from_command_line is not None:
        return from_command_line
    value = config.getini(name)
    option = next(o for o in OPTIONS if o.name == name)
    if value and option.choices and value not in option.choices:
        raise pytest.UsageError(
            f"ini option {name} = {value!r} (in {config.inipath}): allowed are {', '.join(option.choices)}"
        )
    return value


def _timeouts(config: pytest.Config) -> dict[str, float]:
    """Return the fields of ``Timeouts`` that are set; the command line wins for each phase."""
    seconds: dict[str, float] = {}
    for source, texts in (
        (f"ini file {config.inipath}", config.getini("vllm_timeout")),
        ("command line", config.getoption("vllm_timeout", None)),
    ):
        for text in texts or ():
            phase, _, value = text.partition("=")
            if phase not in _PHASES:
                from ..util.validation import did_you_mean

                raise pytest.UsageError(
                    f"vllm_timeout = {text!r} (from the {source}): expected PHASE=SECONDS."
                    f"{did_you_mean(phase, _PHASES)} Phases: {', '.join(_PHASES)}"
                )
            seconds[f"{_PHASES[phase]}_s"] = _positive(f"vllm_timeout {phase}", value, source)
    return seconds


def _number(config: pytest.Config, name: str, default: float) -> float:
    value = _value(config, name)
    if value in (None, ""):
        return default
    given = config.getoption(name, None) is not None
    return _positive(name, value, "command line" if given else f"ini file {config.inipath}")


def _positive(name: str, value: str, source: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        raise pytest.UsageError(f"{name} = {value!r} (from the {source}) is not a positive number")
    return number
