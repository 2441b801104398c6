"""``vllm-regress fuzz``: search for failures that nobody has reported, and replay findings."""

from . import commands, replay

COMMANDS = {
    "schemas": commands.schemas,
    "parsers": commands.parsers,
    "api": commands.api,
    "engines": commands.engines,
    "lifecycle": commands.lifecycle,
    "replay": replay.replay,
    "report": replay.report,
}
