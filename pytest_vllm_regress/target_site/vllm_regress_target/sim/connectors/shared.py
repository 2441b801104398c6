"""A KV connector between a prefill and a decode engine: blocks are files in a folder that both
share, and each transfer is recorded there.

There is no cache on the simulated device, so a block's file holds the tokens of the block. Settings
in ``kv_connector_extra_config``: ``folder``;
``lost``, positions of blocks that cannot be loaded although they were found; ``delay_s``, seconds
that a load takes, asynchronously.
"""

import hashlib
import json
import time
from pathlib import Path
from typing import Any, Optional

from vllm.distributed.kv_transfer.kv_connector.v1 import base

Base: Any = base.KVConnectorBase_V1
Metadata: Any = base.KVConnectorMetadata
EVENTS = "events.jsonl"
Block = tuple[str, list[int], int]
"""A block: its key, its tokens, and its number in the engine's cache."""


class Steps(Metadata):  # type: ignore[misc,unused-ignore]
    """Blocks that the worker saves and loads in a step, by request."""

    def __init__(self, saves: dict[str, list[Block]], loads: dict[str, list[Block]]) -> None:
        self.saves = saves
        self.loads = loads


class SharedConnector(Base):  # type: ignore[misc,unused-ignore]
    """Saves the full blocks of prompts with ``do_remote_decode``, and loads those of prompts with
    ``do_remote_prefill``."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, *([] if kv_cache_config is None else [kv_cache_config]))
        settings = vllm_config.kv_transfer_config.get_from_extra_config
        self._folder = Path(settings("folder", ""))
        self._lost: set[int] = set(settings("lost", []))
        self._delay_s = float(settings("delay_s", 0))
        self._size = vllm_config.cache_config.block_size
        self._saves: dict[str, list[Block]] = {}
        self._loads: dict[str, list[Block]] = {}
        self._computed: dict[str, int] = {}
        self._under_way: dict[str, float] = {}
        self._failed: set[int] = set()

    # Scheduler

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        if not _asks(request, "do_remote_prefill"):
            return 0, False
        found = 0
        for key, _, _ in self._blocks(
            request.prompt_token_ids[:-1], []
        ):  # the last token is computed here
            if not (self._folder / key).exists():
                break
            found += self._size
        self._computed[request.request_id] = num_computed_tokens
        return max(
            0, found - num_computed_tokens
        ), self._delay_s > 0 and found > num_computed_tokens

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if _asks(request, "do_remote_decode"):
            self._saves[request.request_id] = self._blocks(request.prompt_token_ids, [])
        if num_external_tokens:
            numbers = blocks.get_block_ids()[0]
            every = self._blocks(request.prompt_token_ids[:-1], numbers)
            begin = self._computed[request.request_id] // self._size
            self._loads[request.request_id] = every[
                begin : begin + num_external_tokens // self._size
            ]
            request.kv_transfer_params["do_remote_prefill"] = False  # not again after a preemption

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        steps, self._saves, self._loads = Steps(self._saves, self._loads), {}, {}
        return steps

    def request_finished(
        self, request: Any, block_ids: Any
    ) -> tuple[bool, Optional[dict[str, Any]]]:
        self._computed.pop(request.request_id, None)
        return False, {"do_remote_prefill": True} if _asks(request, "do_remote_decode") else None

    # Worker

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for request_id, blocks in self._get_connector_metadata().loads.items():
            for position, (key, tokens, number) in enumerate(blocks):
                stored = json.loads((self._folder / key).read_text())
                failed = position in self._lost or stored != tokens
                self._record("failed" if failed else "loaded", request_id, key)
                if failed:
                    self._failed.add(number)
            if self._delay_s:
                self._under_way[request_id] = time.monotonic() + self._delay_s

    def wait_for_save(self) -> None:
        for request_id, blocks in self._get_connector_metadata().saves.items():
            for key, tokens, _ in blocks:
                (self._folder / key).write_text(json.dumps(tokens))
                self._record("saved", request_id, key)

    def get_finished(self, finished_req_ids: Any) -> tuple[Optional[set[str]], Optional[set[str]]]:
        done = {
            request_id for request_id, end in self._under_way.items() if time.monotonic() >= end
        }
        for request_id in done:
            del self._under_way[request_id]
        return None, done or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        pass

    def _blocks(self, tokens: list[int], numbers: Any) -> list[Block]:
        """Return the full blocks of a prompt. A key depends on all tokens up to the block's end."""
        ends = range(self._size, len(tokens) + 1, self._size)
        return [
            (
                hashlib.sha256(json.dumps(list(tokens[:end])).encode()).hexdigest(),
                list(tokens[end - self._size : end]),
                numbers[position] if position < len(numbers) else -1,
            )
            for position, end in enumerate(ends)
        ]

    def _record(self, event: str, request_id: str, key: str) -> None:
        with (self._folder / EVENTS).open("a") as file:
            file.write(json.dumps({"event": event, "request": request_id, "block": key}) + "\n")


def _asks(request: Any, name: str) -> bool:
    return bool((request.kv_transfer_params or {}).get(name))
