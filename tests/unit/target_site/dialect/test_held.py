"""What an engine still holds is read from objects like those of several releases of vLLM."""

from __future__ import annotations

import queue
from collections import defaultdict, deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target.dialect.held import Core, Front


def _made(module: str, **attributes: Any) -> Any:
    """Return an object of a class that vLLM defines in ``module``."""
    made = type("Manager", (), {"__module__": f"vllm.v1.{module}"})()
    vars(made).update(attributes)
    return made


def _pool(free: int = 100) -> Any:
    pool = _made("core.block_pool", free_block_queue=SimpleNamespace(), free=free)
    pool.get_num_free_blocks = lambda: pool.free
    return pool


def _core_085() -> Any:
    kv = _made("core.kv_cache_manager", req_to_blocks=defaultdict(list), num_cached_block={})
    kv.block_pool = _pool()
    encoder = _made("core.encoder_cache_manager", cached={}, num_free_slots=50)
    scheduler = _made("core.sched.scheduler", requests={}, waiting=deque(), running=[])
    vars(scheduler).update(kv_cache_manager=kv, encoder_cache_manager=encoder, connector=None)
    return _core(scheduler)


def _core_0112() -> Any:
    core = _core_085()
    kv, encoder = core.scheduler.kv_cache_manager, core.scheduler.encoder_cache_manager
    single = _made("core.single_type_kv_cache_manager", req_to_blocks=kv.req_to_blocks)
    single.num_cached_block = {}
    kv.coordinator = _made("core.kv_cache_coordinator", single_type_managers=(single,))
    del kv.req_to_blocks, kv.num_cached_block
    encoder.num_freeable_slots = 50
    return core


def _core_0330() -> Any:
    core = _core_0112()
    vars(core.scheduler).update(deferred_waiting=set(), deferred_loads={})
    core.aborts_queue = queue.Queue()
    return core


def _core(scheduler: Any) -> Any:
    manager = _made("structured_output", pending={})
    scheduler.structured_output_manager = manager
    core = SimpleNamespace(scheduler=scheduler, structured_output_manager=manager)
    core.add_request = lambda request: scheduler.requests.update({request.request_id: request})
    core.abort_requests = lambda ids: [scheduler.requests.pop(one, None) for one in ids]
    return core


RELEASES = pytest.mark.parametrize("make", [_core_085, _core_0112, _core_0330])
REQUEST = SimpleNamespace(request_id="one")


def _leaking(core: Any) -> dict[str, Any]:
    """Return what the core holds after a request that was added, and has left ``requests``."""
    reader = Core(core)
    core.add_request(REQUEST)
    del core.scheduler.requests["one"]
    return reader.read()


@RELEASES
def test_a_core_at_rest_holds_nothing(make: Any) -> None:
    assert _leaking(make()) == {"held": {}, "aborted": [], "numbers": {}, "missing": []}


@RELEASES
def test_requests_are_found_in_every_kind_of_container(make: Any) -> None:
    core = make()
    reader, scheduler = Core(core), core.scheduler
    core.add_request(REQUEST)
    scheduler.running.append(REQUEST)
    scheduler.waiting.append(REQUEST)
    scheduler.encoder_cache_manager.cached["hash"] = {"one", "an id that nobody has given"}
    core.structured_output_manager.pending["one"] = object()
    assert reader.read()["held"] == {
        "scheduler.requests": ["one"],
        "scheduler.running": ["one"],
        "scheduler.waiting": ["one"],
        "scheduler.encoder_cache_manager.cached": ["one"],
        "scheduler.structured_output_manager.pending": ["one"],
    }


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (_core_085, "kv_cache_manager.req_to_blocks"),
        (_core_0112, "kv_cache_manager.coordinator.single_type_managers.req_to_blocks"),
    ],
)
def test_blocks_of_a_request_are_found_where_the_release_keeps_them(make: Any, path: str) -> None:
    core = make()
    kv = core.scheduler.kv_cache_manager
    blocks = vars(kv).get("req_to_blocks")
    if blocks is None:
        blocks = kv.coordinator.single_type_managers[0].req_to_blocks
    blocks["one"]  # a defaultdict makes an entry
    assert _leaking(core)["held"] == {f"scheduler.{path}": ["one"]}


def test_a_queue_of_the_core_is_searched() -> None:
    core = _core_0330()
    core.aborts_queue.put(["one"])
    assert _leaking(core)["held"] == {"aborts_queue": ["one"]}


def test_the_last_step_is_not_held() -> None:
    core = _core_0330()
    core.scheduler.prev_step_scheduled_req_ids = {"one"}
    assert _leaking(core)["held"] == {}


@RELEASES
def test_fewer_free_blocks_than_at_the_start_are_a_number(make: Any) -> None:
    core = make()
    reader = Core(core)
    core.scheduler.kv_cache_manager.block_pool.free -= 3
    name = "num_freeable_slots" if make is not _core_085 else "num_free_slots"
    setattr(core.scheduler.encoder_cache_manager, name, 40)
    numbers = {"free blocks": [97, 100], "free encoder cache": [40, 50]}
    assert reader.read()["numbers"] == numbers


def test_what_a_release_lacks_is_named() -> None:
    core = _core_085()
    del core.scheduler.encoder_cache_manager
    assert Core(core).read()["missing"] == ["free encoder cache"]


def test_nothing_is_known_beside_a_connector() -> None:
    core = _core_085()
    core.scheduler.connector = object()
    reader = Core(core)
    core.add_request(REQUEST)
    assert reader.read()["held"] == {}


@pytest.mark.parametrize("external", [False, True])
def test_the_front_tells_which_requests_it_knows(external: bool) -> None:
    processor = SimpleNamespace(request_states={"one": object()}, parent_requests={})
    if external:
        processor.external_req_ids = defaultdict(list, {"outer": ["one"]})
    answer = Front(SimpleNamespace(output_processor=processor)).read()
    assert answer["live"] == ["one"] == answer["held"]["output_processor.request_states"]
    assert answer["missing"] == ([] if external else ["external_req_ids"])
    assert ("output_processor.external_req_ids" in answer["held"]) is external


def _front_parts() -> tuple[Any, Any, Front]:
    """Return an output processor and a client of the core, and what reads them."""
    processor = _made("engine.output_processor", request_states={}, parent_requests={})
    processor.process_outputs = lambda outputs: None
    client = _made("engine.core_client", utility_results={})
    client.add_request = lambda request: processor.request_states.update(
        {request.request_id: request}
    )
    return processor, client, Front(SimpleNamespace(output_processor=processor, engine_core=client))


@pytest.mark.parametrize(("reason", "given_up"), [(None, ["one"]), ("length", [])])
def test_a_request_that_the_core_has_not_ended_is_given_up(
    reason: str | None, given_up: list[str]
) -> None:
    processor, client, reader = _front_parts()
    client.add_request(REQUEST)
    assert reader.read()["given_up"] == []
    processor.process_outputs([SimpleNamespace(request_id="one", finish_reason=reason)])
    del processor.request_states["one"]
    assert reader.read()["given_up"] == given_up
    processor.process_outputs([SimpleNamespace(request_id="one", finish_reason="length")])
    assert reader.read()["given_up"] == given_up, "the core came to the end by itself"


@RELEASES
def test_the_core_says_which_requests_it_was_told_to_abort(make: Any) -> None:
    core = make()
    reader = Core(core)
    core.add_request(REQUEST)
    core.abort_requests(["one"])
    assert reader.read()["aborted"] == ["one"]
    core.add_request(REQUEST)
    assert reader.read()["aborted"] == []


def test_requests_are_found_below_the_objects_of_the_front() -> None:
    processor, client, reader = _front_parts()
    processor.lora_states = _made("metrics.stats", requests={})
    processor.lora_states.requests["adapter"] = _made("metrics.stats", running={"one"})
    client.in_flight = {"one": object()}
    client.add_request(REQUEST)
    processor.request_states.clear()
    assert reader.read()["held"] == {
        "output_processor.lora_states.requests.running": ["one"],
        "client.in_flight": ["one"],
    }


def test_answers_of_calls_that_are_kept_are_a_number() -> None:
    _, client, reader = _front_parts()
    client.utility_results[1] = pending = Future[None]()
    assert reader.read()["numbers"] == {}
    pending.set_result(None)
    assert reader.read()["numbers"] == {"client.utility_results": [1, 0]}


def test_counts_of_requests_and_statistics_that_are_not_reported_are_numbers() -> None:
    core = _core_0330()
    core.scheduler.num_waiting_for_input = 0
    kv = core.scheduler.kv_cache_manager
    kv.statistics = type("CacheStats", (), {"__module__": "vllm.v1.metrics.stats"})()
    vars(kv.statistics).update(reset=False, requests=0, queries=0)
    reader = Core(core)
    core.scheduler.num_waiting_for_input = 1
    vars(kv.statistics).update(reset=True, requests=2, queries=30)
    assert reader.read()["numbers"] == {
        "scheduler.num_waiting_for_input": [1, 0],
        "kv_cache_manager.statistics": [32, 0],
    }
