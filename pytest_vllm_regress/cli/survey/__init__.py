"""``vllm-regress survey``: measure what releases of vLLM can do, survive, and need.

Each command keeps its results in the cache until everything is measured: an interrupted command is
repeated to resume it.
"""

from . import conformance, drift, states, upstream

COMMANDS = {
    "conformance": conformance.conformance,
    "states": states.states,
    "drift": drift.drift,
    "upstream": upstream.upstream,
}
