"""Which vLLM the drop-in classes use, and the session that their servers and engines share."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from ...engines.checkpoints.forge import KINDS
from ...engines.checkpoints.hub_cache import NAME, ensure_alias, kind_of
from ...engines.settings import Limits, Settings
from ...engines.standalone import Engines, engines_until_exit
from ...errors import ChildDied, ChildError, DeadlineExceeded, RegressError, UsageError
from ...util.paths import writable_root

ENVIRONMENT = "VLLM_REGRESS_ENVIRONMENT"
"""The environment of the drop-in classes: a name or the path of an interpreter.

Default: this interpreter, if it has vLLM.
"""
DEVICE = "VLLM_REGRESS_DROP_IN_DEVICE"
REUSE = "VLLM_REGRESS_DROP_IN_REUSE"
"""``0``: each server ends with its block, so that no test sees what another one has loaded into it
or counted."""
MAX_ENGINES = 3
PREFERS_V1 = "VLLM_REGRESS_SIM_PREFERS_V1"
"""Variable of the simulated device: vLLM chooses V1 wherever it does on CUDA, not V0 as on devices
that it does not know (0.8 to 0.10)."""
_INHERITED = dict(os.environ)
"""The variables of this process before a test changed any."""
_OF_RUNNER = ("PYTEST_", "PYTHON")
"""Prefixes of variables that concern this process alone."""


_warming: threading.Thread | None = None


def engines() -> Engines:
    """Return the engines that all drop-ins of this process share. They end with the process."""
    if _warming is not None:
        _warming.join()
    return _shared()


def begin_warming() -> None:
    """Begin to import vLLM for the first engine, beside what this process does until it needs one."""
    global _warming
    if _warming is None:
        _warming = threading.Thread(target=_warm, args=(_shared(),))
        _warming.start()


def _warm(shared: Engines) -> None:
    with contextlib.suppress(RegressError):  # the first engine meets the same error and reports it
        shared.warm()


@functools.cache
def _shared() -> Engines:
    given = os.environ.get(ENVIRONMENT)
    settings = Settings(
        environments=(given,) if given else (),
        device=os.environ.get(DEVICE, "auto"),
        max_engines=MAX_ENGINES,
        limits=Limits(option_names={}),
        hub_cache=None if os.environ.get(DEVICE) == "gpu" else hub_folder(),
        variables={PREFERS_V1: "1"},
        inherited=_INHERITED,
    )
    return engines_until_exit(settings, "drop-in")


def changed_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a server that it would not have anyway: of ``given``, often a full
    copy of ``os.environ``, and of those that tests have
    set in this process."""
    return {
        name: value
        for name, value in {**os.environ, **given}.items()
        if _INHERITED.get(name) != value
        and not (name.startswith(_OF_RUNNER) and os.environ.get(name) == value)
    }


def reuses_servers() -> bool:
    """Return whether a released server stays for the next test with equal arguments."""
    return os.environ.get(REUSE) != "0"


def hub_folder() -> Path:
    """Return the folder of the hub cache with the aliases."""
    return writable_root() / "hub-aliases"


def provide(model: str, device: str) -> None:
    """Make sure that ``model`` is found: without a GPU a name of the hub is an alias of a forged
    checkpoint.

    Raises ``UsageError`` for a name without a stand-in.
    """
    if device == "gpu" or model in KINDS or not NAME.fullmatch(model) or Path(model).exists():
        return
    if ensure_alias(model, hub_folder(), writable_root() / "checkpoints") is None:
        assert kind_of(model) is None
        raise UsageError(f"{model}: no stand-in: there is no forged checkpoint of this kind")


DOSSIERS = "VLLM_REGRESS_DROP_IN_DOSSIERS"
"""Folder for the dossiers of servers that do not start. Without it, the errors have them whole."""
START_S = 240.0
"""Seconds that a server may take to start, where the test sets no limit. As upstream's."""
_DOSSIER_S = 15.0
"""Seconds that are kept of a test for the dossier of a server and the end of its processes."""
_MAX_NAME = 100
_test_ends = math.inf


def begin_test(seconds: float) -> None:
    """Note that a test begins which is interrupted after ``seconds``."""
    global _test_ends
    _test_ends = time.monotonic() + seconds


def start_limit(wanted: float | None) -> float:
    """Return the seconds that a server may take to start: as ``wanted``, but no longer than the
    test leaves for it and its dossier."""
    return max(1.0, min(wanted or START_S, _test_ends - _DOSSIER_S - time.monotonic()))


def start_error(error: ChildError) -> RuntimeError:
    """Return upstream's error for a server that did not start: with the dossier, or in one line
    where that is in a file."""
    how = "Server failed"
    if isinstance(error, DeadlineExceeded):
        how = "Server failed to start in time"
    elif isinstance(error, ChildDied):
        how = "Server exited unexpectedly"
    dossier = _save(str(error))
    return RuntimeError(
        f"{how}.\n{error}" if dossier is None else f"{how}: {error.args[0]}; dossier: {dossier}"
    )


def _save(dossier: str) -> Path | None:
    """Write a dossier to a new file named after the running test.

    Return its path; None without a folder for dossiers.
    """
    folder = os.environ.get(DOSSIERS)
    if not folder:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    test = re.sub(
        r"[^\w.]+", "-", os.environ.get("PYTEST_CURRENT_TEST", "server").rpartition(" ")[0]
    )[-_MAX_NAME:]
    handle, path = tempfile.mkstemp(prefix=f"{test.strip('-')}-", suffix=".txt", dir=folder)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(dossier + "\n")
    return Path(path)
