"""The simulated device: a vLLM platform plug-in that lets a stock CUDA wheel run on a machine
without a GPU.

Everything in vLLM is real except the neural network: the worker computes no attention and no matrix
product. Its logits are a pure function of a request's token history. vLLM's own sampler, logits
processors and grammar masks do the rest.

This module uses only the standard library, because vLLM calls :func:`register` in every process,
long before it needs the platform.
"""

import logging
import os
import threading
import time
from typing import Callable, Optional, Union

from ..dialect import ray_clusters

DEVICE_VARIABLE = "VLLM_REGRESS_DEVICE"
DEVICE_NAME = "simulated device (pytest-vllm-regress): tokens are drawn, no model is run"
PLATFORM = "vllm_regress_target.sim.platform.SimPlatform"


def register() -> Optional[str]:
    """Entry point of the group ``vllm.platform_plugins``: return the platform's qualified name, or
    None to change nothing.

    How does vLLM find the simulated device? The entry point stands in ``target_site/*.dist-info``,
    and the agent's variables (``engines/processes/agent.py``) put that on PYTHONPATH. Nothing is
    installed.
    """
    if os.environ.get(DEVICE_VARIABLE) != "sim":
        return None
    # There is nothing to compile, and on a CPU torch.compile needs a C++ compiler.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    os.sched_yield = YieldThenSleep()
    ray_clusters.watch()
    return PLATFORM


class YieldThenSleep(threading.local):
    """Replacement for ``os.sched_yield``, which vLLM's processes call in a loop to wait for each
    other.

    A wait yields for 2 ms; then each call sleeps for an eighth of the time waited since, at most 5
    ms. Without this, each idle worker would keep a core busy as long as its engine lives. Moreover,
    on some kernels (such as Linux 6.18) a process that only yields keeps the others from running
    for many seconds.
    """

    _YIELD_S, _SLEEP_FRACTION, _MAX_SLEEP_S = 2e-3, 1 / 8, 5e-3
    _NEW_WAIT_S = 1e-4
    """Processor time between two calls from which on the second call begins a new wait."""

    def __init__(self, sched_yield: Callable[[], None] = os.sched_yield) -> None:
        self._sched_yield = sched_yield
        self._since = self._cpu = 0.0

    def __call__(self) -> None:
        """Yield, or sleep briefly if this wait has already lasted long."""
        now, cpu = time.monotonic(), time.thread_time()
        if cpu - self._cpu > self._NEW_WAIT_S:
            self._since = now
        waited = now - self._since
        if waited < self._YIELD_S:
            self._sched_yield()
        else:
            time.sleep(min((waited - self._YIELD_S) * self._SLEEP_FRACTION, self._MAX_SLEEP_S))
        self._cpu = time.thread_time()


def preload() -> None:
    """Import what engine processes need, in a process that will fork them. This saves each of them
    about 0.4 s.

    Call it after vLLM was imported for this device. It starts nothing.
    """
    import contextlib
    import importlib

    skip_unchanged_log_levels()
    for name in (
        ".worker_v1",
        ".worker_v0",
        "..hosts.engine",
        "vllm.v1.engine.core",
        "vllm.v1.executor.multiproc_executor",
        "vllm.v1.core.sched.async_scheduler",
        "vllm.model_executor.models.config",
        "vllm.kernels",
        "vllm.engine.llm_engine",
        "vllm.plugins.lora_resolvers.filesystem_resolver",
        "vllm.plugins.lora_resolvers.hf_hub_resolver",
        "setproctitle",
        "xgrammar",
    ):
        # Not every vLLM has all of these. An import that fails here fails again, with its full
        # error, when it is needed.
        with contextlib.suppress(Exception):
            importlib.import_module(name, __name__)


def skip_unchanged_log_levels() -> None:
    """Make ``Logger.setLevel`` ignore a level that is already set.

    Otherwise each call clears the caches of all loggers, and vLLM sets the levels of its two
    hundred loggers in each process.
    """
    set_level_of_logger = logging.Logger.setLevel

    def set_level(self: logging.Logger, level: Union[int, str]) -> None:
        if level not in (self.level, logging.getLevelName(self.level)):
            set_level_of_logger(self, level)

    logging.Logger.setLevel = set_level  # type: ignore[method-assign]
