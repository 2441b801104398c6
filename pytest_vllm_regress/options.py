"""The plugin's options: each described once, for the command line and its ini twin, and resolved once into ``Settings``."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from .deadline import PHASES, Timeouts
from .errors import UsageError
from .settings import Settings


@dataclasses.dataclass(frozen=True)
class _Option:
    name: str
    help: str
    metavar: str | None = None
    many: bool = False
    flag: bool = False
    choices: tuple[str, ...] | None = None

    @property
    def flag_name(self) -> str:
        return "--" + self.name.replace("_", "-")


OPTIONS = (
    _Option("vllm_gpu", "run on real GPUs; an error when there is none (short for --vllm-device gpu)", flag=True),
    _Option("vllm_device", "auto (cpu where a CPU build of vLLM is installed, else sim), sim, cpu or gpu", choices=("auto", "sim", "cpu", "gpu")),
    _Option("vllm_env", "environment to test: a name (see `vllm-regress env list`) or an interpreter's path; repeatable", "NAME|PATH", many=True),
    _Option("vllm_model", "a real checkpoint (path or hub name) instead of the tiny forged ones", "MODEL"),
    _Option("vllm_fail_on_known", "a documented failure that is reproduced fails the test instead of being expected", flag=True),
    _Option("vllm_report", "write the verdicts to this JSON file", "FILE"),
    _Option("vllm_leftovers", "what an engine leaves behind: warn (default) or fail the test that left it", choices=("warn", "fail")),
    _Option("vllm_max_engines", "shared engines kept alive at the same time (default 2)", "N"),
    _Option("vllm_start_method", "how engine processes start: fork from the warm agent (default) or spawn", choices=("fork", "spawn")),
    *(_Option(f"vllm_timeout_{phase}", f"seconds the {phase} phase may take (default {Timeouts().of(phase):g})", "SECONDS") for phase in PHASES),
)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and its ini twin."""
    group = parser.getgroup("vllm-regress", "vLLM regression harness")
    for option in OPTIONS:
        if option.flag:
            group.addoption(option.flag_name, dest=option.name, action="store_const", const=True, default=None, help=option.help)
        else:
            group.addoption(option.flag_name, dest=option.name, action="append" if option.many else "store", default=None,
                            metavar=option.metavar, choices=option.choices, help=option.help)
        kind = "bool" if option.flag else "args" if option.many else "string"
        parser.addini(option.name, option.help, type=kind, default=None)  # type: ignore[arg-type]


def resolve(config: pytest.Config) -> Settings:
    """Command line over ini file; a bad value is an error that names where it came from."""
    device = _value(config, "vllm_device") or "auto"
    if _value(config, "vllm_gpu"):
        if device not in ("auto", "gpu"):
            raise pytest.UsageError(f"--vllm-gpu and --vllm-device {device} contradict each other: give one of them")
        device = "gpu"
    timeouts = {f"{phase}_s": _number(config, f"vllm_timeout_{phase}", Timeouts().of(phase)) for phase in PHASES}
    report = _value(config, "vllm_report")
    return Settings(
        environments=tuple(dict.fromkeys(_value(config, "vllm_env") or ())),
        device=device,
        model=_value(config, "vllm_model"),
        timeouts=Timeouts(**timeouts),
        fail_on_known=bool(_value(config, "vllm_fail_on_known")),
        report=Path(report) if report else None,
        leftovers=_value(config, "vllm_leftovers") or "warn",
        max_engines=int(_number(config, "vllm_max_engines", 2)),
        start_method=_value(config, "vllm_start_method") or "fork",
    )


def check(settings: Settings) -> None:
    """Errors that should stop the run before a test is collected."""
    if settings.device == "gpu":
        from .device import require_gpus

        try:
            require_gpus()
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None


def _value(config: pytest.Config, name: str):  # type: ignore[no-untyped-def]  # the type is the option's
    given = config.getoption(name, None)
    if given is not None:
        return given
    value = config.getini(name)
    option = next(o for o in OPTIONS if o.name == name)
    if value and option.choices and value not in option.choices:
        raise pytest.UsageError(f"ini option {name} = {value!r} (in {config.inipath}): allowed are {', '.join(option.choices)}")
    return value


def _number(config: pytest.Config, name: str, default: float) -> float:
    given = _value(config, name)
    if given in (None, ""):
        return default
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e6:
        source = "command line" if config.getoption(name, None) is not None else f"ini file {config.inipath}"
        raise pytest.UsageError(f"{name} = {given!r} (from the {source}) is not a positive number")
    return number
