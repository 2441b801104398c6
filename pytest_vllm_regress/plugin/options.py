"""The plugin's options: each is described once for the command line and the ini file, and resolved
once into ``Settings``."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ..defaults import (
    ASKED_DEVICES,
    GPU_WAIT_S,
    MAX_ENGINES,
    MAX_LOG_MIB,
    MAX_PROCESSES,
    MEMORY_SHARE,
    TIMEOUTS_S,
)

if TYPE_CHECKING:
    from ..engines.settings import Settings


class _Option(NamedTuple):
    name: str
    help: str
    metavar: str | None = None
    many: bool = False
    flag: bool = False
    choices: tuple[str, ...] | None = None
    path: bool = False

    @property
    def flag_name(self) -> str:
        return "--" + self.name.replace("_", "-")


_PHASES = {name.replace("_", "-"): name for name in TIMEOUTS_S}
_LIMITS = ("engines", "memory", "processes", "log", "session", "gpu-wait", "gpu-runs")
DEFAULTS_INI = "vllm_engine_defaults"
NAME_KNOWN_INI = "vllm_name_known"
OPTIONS = (
    _Option(
        "vllm_gpu",
        "run on real GPUs; an error when there is none (short for --vllm-device gpu)",
        flag=True,
    ),
    _Option(
        "vllm_device",
        "auto (cpu where a CPU build of vLLM is installed, else sim), sim, cpu or gpu",
        choices=ASKED_DEVICES,
    ),
    _Option(
        "vllm_env",
        "environment to test: a name (see `vllm-regress env list`) or an interpreter's path; repeatable",
        "NAME|PATH",
        many=True,
        path=True,
    ),
    _Option(
        "vllm_source",
        "where vllm@REV finds its commits: a clone's path, or a URL that is cloned once; PACKAGE=... for another package; repeatable",
        "[PACKAGE=]PATH|URL",
        many=True,
        path=True,
    ),
    _Option(
        "vllm_wheel_index",
        "a package index with {commit} in its address: vllm@REV is then the commit's own wheel, for every device",
        "URL",
    ),
    _Option(
        "vllm_model",
        "a real checkpoint (path or hub name) instead of the tiny forged ones",
        "MODEL",
        path=True,
    ),
    _Option(
        "vllm_fail_on_known",
        "a documented failure that is reproduced fails the test instead of being expected",
        flag=True,
    ),
    _Option(
        "vllm_minimize",
        "run a failed test again on smaller engines: reports the smallest that fails and the largest that works",
        flag=True,
    ),
    _Option("vllm_report", "write the verdicts to this JSON file", "FILE", path=True),
    _Option(
        "vllm_leftovers",
        "what an engine leaves behind: warn (default) or fail the test that left it. requests: "
        "warn, and fail a test after which an engine still keeps requests that have ended",
        choices=("warn", "fail", "requests"),
    ),
    _Option(
        "vllm_limit",
        f"a limit; repeatable. engines: alive at the same time (default {MAX_ENGINES}). memory: GiB "
        "that an engine and all its processes may use (default: "
        f"{100 * MEMORY_SHARE:g} % of the machine's or the container's). processes: that an engine may "
        f"have (default {MAX_PROCESSES}). log: MiB that an engine's log may have; else its middle goes "
        f"(default {MAX_LOG_MIB}). session: seconds for all tests together; then engines are ended and "
        "none is started (default: no limit). gpu-wait: seconds an engine waits for GPUs that other "
        f"runs hold (default {GPU_WAIT_S:g}). gpu-runs: how many runs, or workers of pytest-xdist, may "
        "use one GPU at the same time, if all of them allow it (default 1)",
        "NAME=NUMBER",
        many=True,
    ),
    _Option(
        "vllm_full_deadlines",
        "wait for every deadline, even when the text of a documented hang was seen and nothing moves any more, or an engine's process was killed",
        flag=True,
    ),
    _Option(
        "vllm_start_method",
        "how engine processes start: fork from the warm agent (default) or spawn",
        choices=("fork", "spawn"),
    ),
    _Option(
        "vllm_timeout",
        "seconds that a phase may take; repeatable. Defaults: "
        + ", ".join(f"{phase}={TIMEOUTS_S[name]:g}" for phase, name in _PHASES.items())
        + ". first-start: start and ready on GPUs, until an environment has started once and its "
        "kernels are compiled",
        "PHASE=SECONDS",
        many=True,
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and its ini twin."""
    group = parser.getgroup("vllm-regress", "vLLM regression harness")
    group.addoption(
        "--vllm-impostors",
        dest="vllm_impostors",
        metavar="FOLDER",
        default=None,
        help=argparse.SUPPRESS,
    )
    group.addoption(
        "--vllm-suite",
        dest="vllm_suite",
        metavar="FILE",
        default=None,
        help=argparse.SUPPRESS,
    )
    parser.addini(
        DEFAULTS_INI,
        "fields of EngineSpec for all tests without a case, one NAME=VALUE a line, as JSON or else text",
        type="linelist",
        default=[],
    )
    parser.addini(
        NAME_KNOWN_INI,
        "name documented failures of the environment below a failed test that shows no case itself",
        type="bool",
        default=True,
    )
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


_DEFAULTS: pytest.StashKey[Mapping[str, Any]] = pytest.StashKey()


def engine_defaults(config: pytest.Config) -> Mapping[str, Any]:
    """Return the fields of EngineSpec that the ini file, or a ``conftest.py``, sets for all tests.

    A bad line is a ``pytest.UsageError``.
    """
    if _DEFAULTS not in config.stash:
        from ..engines.spec import EngineSpec, full_names
        from ..errors import UsageError
        from ..util.validation import json_or_text

        pairs = (line.partition("=") for line in config.getini(DEFAULTS_INI))
        try:
            values = full_names(
                {name.strip(): json_or_text(text.strip()) for name, _, text in pairs}
            )
            EngineSpec.create(**values)
        except UsageError as error:
            raise pytest.UsageError(f"ini option {DEFAULTS_INI}: {error}") from None
        config.stash[_DEFAULTS] = values
    return config.stash[_DEFAULTS]


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

    if sys.flags.optimize:
        raise pytest.UsageError(
            "python -O and PYTHONOPTIMIZE remove assertions, and with them failures: run pytest without"
        )
    default = Settings()
    device = _value(config, "vllm_device") or default.device
    if _value(config, "vllm_gpu"):
        if device not in ("auto", "gpu"):
            raise pytest.UsageError(
                f"--vllm-gpu and --vllm-device {device} contradict each other: give one of them"
            )
        device = "gpu"
    report, model = _value(config, "vllm_report"), _value(config, "vllm_model")
    timeouts = _numbers(config, "vllm_timeout", "PHASE=SECONDS", _PHASES)
    limits = _numbers(config, "vllm_limit", "NAME=NUMBER", _LIMITS)
    try:
        places, index = _value(config, "vllm_source"), _value(config, "vllm_wheel_index")
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
    environments = _value(config, "vllm_env") or ()
    if config.getoption("vllm_suite"):  # the last one is that of `matrix`, others are the project's
        environments = environments[-1:]
    return Settings(
        environments=tuple(dict.fromkeys(environments)),
        device=device,
        model=str(expand_home(model)) if model and model.startswith("~") else model,
        timeouts=Timeouts(**{f"{_PHASES[name]}_s": value for name, value in timeouts.items()}),
        fail_on_known=bool(_value(config, "vllm_fail_on_known")),
        report=expand_home(report) if report else None,
        leftovers=_value(config, "vllm_leftovers") or default.leftovers,
        max_engines=int(limits.get("engines", MAX_ENGINES)),
        limits=Limits(
            session_s=limits.get("session"),
            memory_bytes=limits.get("memory", 0.0) * GIB or None,
            processes=int(limits.get("processes", MAX_PROCESSES)),
            log_bytes=limits.get("log", MAX_LOG_MIB) * MIB,
        ),
        start_method=_value(config, "vllm_start_method") or default.start_method,
        minimize=bool(_value(config, "vllm_minimize")),
        gpu_wait_s=limits.get("gpu-wait", GPU_WAIT_S),
        gpu_runs=max(1, int(limits.get("gpu-runs", 1))),
        full_deadlines=bool(_value(config, "vllm_full_deadlines")),
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


def _numbers(
    config: pytest.Config, option: str, form: str, allowed: Collection[str]
) -> dict[str, float]:
    """Return the numbers that are set as NAME=NUMBER; the command line wins for each name."""
    numbers: dict[str, float] = {}
    for source, texts in (
        (f"ini file {config.inipath}", config.getini(option)),
        ("command line", config.getoption(option, None)),
    ):
        for text in texts or ():
            name, _, value = text.partition("=")
            if name not in allowed:
                from ..util.validation import did_you_mean

                raise pytest.UsageError(
                    f"{option} = {text!r} (from the {source}): expected {form}."
                    f"{did_you_mean(name, allowed)} {form.partition('=')[0].capitalize()}s: "
                    f"{', '.join(allowed)}"
                )
            try:
                number = float(value)
            except ValueError:
                number = 0.0
            if not 0 < number < 1e6:
                raise pytest.UsageError(
                    f"{option} {name} = {value!r} (from the {source}) is not a positive number"
                )
            numbers[name] = number
    return numbers
