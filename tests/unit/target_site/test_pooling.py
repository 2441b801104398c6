"""Pooling tasks in the words of each vLLM; vLLM itself is a stand-in."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import pooling

NEW = {"runner", "convert", "pooler_config"}


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives vLLM these pooling tasks (None: it names none), a PoolerConfig with these fields, and PoolingParams with these."""

    def install(tasks: tuple[str, ...] | None, config: tuple[str, ...] = (), params: tuple[str, ...] = ()) -> None:
        module = ModuleType("vllm")
        module.PoolingParams = type(  # type: ignore[attr-defined]
            "PoolingParams", (SimpleNamespace,), {"__struct_fields__": params}
        )
        monkeypatch.setitem(sys.modules, "vllm", module)
        pooler = SimpleNamespace(PoolerConfig=type("PoolerConfig", (), dict.fromkeys(config)))
        monkeypatch.setitem(sys.modules, "vllm.config", pooler)
        monkeypatch.setitem(sys.modules, "vllm.tasks", None if tasks is None else SimpleNamespace(POOLING_TASKS=tasks))

    return install


@pytest.mark.parametrize(
    ("task", "asked"),
    [
        ("generate", {}),
        ("embed", {"task": "embed"}),
        ("token_embed", {"task": "reward"}),
        ("classify", {"task": "classify"}),
        ("score", {"task": "score"}),
    ],
)
def test_a_task_is_an_argument_of_the_engine_up_to_0_9(vllm: Any, task: str, asked: dict[str, str]) -> None:
    vllm(None)
    assert pooling.plan(task, "auto", {"task"}, "0.9.2") == asked
    assert vars(pooling.params("embed", None)) == {} and pooling.name_of("embed") == "embed"


def test_later_a_runner_and_what_a_model_is_converted_to(vllm: Any) -> None:
    vllm(("encode", "embed", "classify", "score"), ("pooling_type",), ("task",))
    assert pooling.plan("embed", "auto", NEW | {"task"}, "0.10.2") == {"runner": "pooling", "convert": "embed"}
    assert pooling.plan("token_embed", "auto", NEW, "0.10.2") == {"runner": "pooling", "convert": "reward"}
    assert pooling.plan("classify", "auto", NEW, "0.10.2") == {"runner": "pooling"}
    assert [pooling.params(task, None).task for task in ("token_embed", "score")] == ["encode", "score"]


def test_token_by_token_is_said_by_the_pooler_s_configuration(vllm: Any) -> None:
    tasks = ("embed", "classify", "token_embed", "token_classify")
    vllm(tasks, ("pooling_type",), ("task",))
    both = {"runner": "pooling", "convert": "embed"}
    assert pooling.plan("token_embed", "auto", NEW, "0.11.2") == {**both, "pooler_config": {"pooling_type": "ALL"}}
    vllm(tasks, ("pooling_type", "task"), ("task",))
    assert pooling.plan("token_embed", "auto", NEW, "0.33.0") == {**both, "pooler_config": {"task": "token_embed"}}
    assert [pooling.params(task, None).task for task in ("token_embed", "score")] == ["token_embed", "classify"]


def test_what_a_request_leaves_open_is_filled_in_as_servers_do_it(vllm: Any) -> None:
    """Was red: an asynchronous engine of 0.11 waited for ever, as its core could not read what stayed None."""
    vllm(("embed",), (), ("task",))

    def verify(asked: Any, task: str, model_config: str) -> None:
        asked.filled_in = (task, model_config)

    sys.modules["vllm"].PoolingParams.verify = verify
    assert pooling.params("embed", SimpleNamespace(model_config="model")).filled_in == ("embed", "model")
    sys.modules["vllm"].PoolingParams.verify = lambda asked, model_config: pytest.fail("0.20 does it in the engine")
    assert vars(pooling.params("embed", None)) == {"task": "embed"}


def test_a_vllm_without_pooling_is_not_applicable(vllm: Any) -> None:
    vllm(None)
    with pytest.raises(Unsupported, match="no engine argument for the task 'embed'"):
        pooling.plan("embed", "auto", set(), "0.5.4")


@dataclasses.dataclass
class NewRequestData:
    req_id: str


@dataclasses.dataclass
class NewRequestDataThatPools(NewRequestData):
    pooling_params: object


def test_v1_pools_where_its_workers_are_told(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Was red: a server of V1 up to 0.8 ended at its start, an error instead of not applicable."""
    vllm(None)
    for told in (None, NewRequestData):
        module = SimpleNamespace(NewRequestData=told) if told else None
        monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.output", module)
        with pytest.raises(Unsupported, match="pooling in V1") as refused:
            pooling.plan("embed", "V1", {"task"}, "0.8.5")
        assert refused.value.claim["since"] == "0.9.2"
    monkeypatch.setitem(
        sys.modules, "vllm.v1.core.sched.output", SimpleNamespace(NewRequestData=NewRequestDataThatPools)
    )
    assert pooling.plan("embed", "V1", {"task"}, "0.9.2") == {"task": "embed"}


def test_v0_pools_as_long_as_its_engine_knows_such_requests(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Was red: an error of each request in V0 of 0.10, instead of not applicable."""
    vllm(None)
    monkeypatch.setitem(sys.modules, "vllm.engine.llm_engine", SimpleNamespace())
    with pytest.raises(Unsupported, match="pooling in V0") as refused:
        pooling.plan("embed", "V0", NEW, "0.10.2")
    assert refused.value.claim["until"] == "0.9.2"
    monkeypatch.setitem(sys.modules, "vllm.engine.llm_engine", SimpleNamespace(PoolingParams=None))
    assert pooling.plan("embed", "V0", {"task"}, "0.9.2") == {"task": "embed"}
