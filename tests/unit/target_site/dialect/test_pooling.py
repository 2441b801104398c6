"""Arguments for pooling tasks in each vLLM. vLLM itself is a stub."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest

from pytest_vllm_regress.target_site.vllm_regress_target import Unsupported
from pytest_vllm_regress.target_site.vllm_regress_target.dialect import pooling

NEW = {"runner", "convert", "pooler_config"}


def plan(task: str, generation: str, fields: set[str], version: str) -> dict[str, Any]:
    sys.modules["vllm"].__version__ = version  # type: ignore[attr-defined]
    return pooling.plan(task, generation, fields)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that installs a vLLM with these pooling tasks (None: it has no list) and
    these fields of the configuration and parameters."""

    def install(
        tasks: tuple[str, ...] | None, config: tuple[str, ...] = (), params: tuple[str, ...] = ()
    ) -> None:
        module = ModuleType("vllm")
        module.PoolingParams = type(  # type: ignore[attr-defined]
            "PoolingParams", (SimpleNamespace,), {"__struct_fields__": params}
        )
        monkeypatch.setitem(sys.modules, "vllm", module)
        pooler = SimpleNamespace(PoolerConfig=type("PoolerConfig", (), dict.fromkeys(config)))
        monkeypatch.setitem(sys.modules, "vllm.config", pooler)
        monkeypatch.setitem(sys.modules, "vllm.pooling_params", SimpleNamespace())
        monkeypatch.setitem(
            sys.modules,
            "vllm.tasks",
            None if tasks is None else SimpleNamespace(POOLING_TASKS=tasks),
        )

    return install


@pytest.mark.parametrize(
    ("task", "arguments"),
    [
        ("generate", {}),
        ("embed", {"task": "embed"}),
        ("token_embed", {"task": "reward"}),
        ("classify", {"task": "classify"}),
        ("score", {"task": "score"}),
    ],
)
def test_up_to_0_9_a_task_is_an_engine_argument(
    vllm: Any, task: str, arguments: dict[str, str]
) -> None:
    vllm(None)
    assert plan(task, "auto", {"task"}, "0.9.2") == arguments
    assert vars(pooling.params("embed", None)) == {} and pooling.name_of("embed") == "embed"


def test_in_0_10_0_the_tasks_are_a_type(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm(None)
    monkeypatch.setattr(
        sys.modules["vllm.pooling_params"], "PoolingTask", Literal["encode", "embed"], raising=False
    )
    assert pooling.task_names() == ("encode", "embed")


def test_later_a_task_is_a_runner_and_a_conversion(vllm: Any) -> None:
    vllm(("encode", "embed", "classify", "score"), ("pooling_type",), ("task",))
    assert plan("embed", "auto", NEW | {"task"}, "0.10.2") == {
        "runner": "pooling",
        "convert": "embed",
    }
    assert plan("token_embed", "auto", NEW, "0.10.2") == {
        "runner": "pooling",
        "convert": "reward",
    }
    assert plan("classify", "auto", NEW, "0.10.2") == {"runner": "pooling"}
    assert [pooling.params(task, None).task for task in ("token_embed", "score")] == [
        "encode",
        "score",
    ]


def test_token_wise_pooling_is_set_in_the_pooler_configuration(vllm: Any) -> None:
    tasks = ("embed", "classify", "token_embed", "token_classify")
    vllm(tasks, ("pooling_type",), ("task",))
    both = {"runner": "pooling", "convert": "embed"}
    assert plan("token_embed", "auto", NEW, "0.11.2") == {
        **both,
        "pooler_config": {"pooling_type": "ALL"},
    }
    vllm(tasks, ("pooling_type", "task"), ("task",))
    assert plan("token_embed", "auto", NEW, "0.33.0") == {
        **both,
        "pooler_config": {"task": "token_embed"},
    }
    assert [pooling.params(task, None).task for task in ("token_embed", "score")] == [
        "token_embed",
        "classify",
    ]


def test_missing_parameters_are_filled_in_as_by_servers(vllm: Any) -> None:
    """Regression: an asynchronous engine of 0.11 hung, because its core could not read parameters
    that were None."""
    vllm(("embed",), (), ("task",))

    def verify(params: Any, task: str, model_config: str) -> None:
        params.filled_in = (task, model_config)

    sys.modules["vllm"].PoolingParams.verify = verify
    assert pooling.params("embed", SimpleNamespace(model_config="model")).filled_in == (
        "embed",
        "model",
    )
    sys.modules["vllm"].PoolingParams.verify = lambda params, model_config: pytest.fail(
        "0.20 does it in the engine"
    )
    assert vars(pooling.params("embed", None)) == {"task": "embed"}


def test_a_vllm_without_pooling_is_unsupported(vllm: Any) -> None:
    vllm(None)
    with pytest.raises(Unsupported, match="no engine argument for the task 'embed'"):
        plan("embed", "auto", set(), "0.5.4")


@dataclasses.dataclass
class NewRequestData:
    req_id: str


@dataclasses.dataclass
class NewRequestDataThatPools(NewRequestData):
    pooling_params: object


def test_v1_pools_if_its_workers_get_pooling_parameters(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a V1 server up to 0.8 ended at its start, which counted as an error instead of
    not applicable."""
    vllm(None)
    for request_class in (None, NewRequestData):
        module = SimpleNamespace(NewRequestData=request_class) if request_class else None
        monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.output", module)
        with pytest.raises(Unsupported, match="pooling in V1") as refused:
            plan("embed", "V1", {"task"}, "0.8.5")
        assert refused.value.claim["since"] == "0.9.2"
    monkeypatch.setitem(
        sys.modules,
        "vllm.v1.core.sched.output",
        SimpleNamespace(NewRequestData=NewRequestDataThatPools),
    )
    assert plan("embed", "V1", {"task"}, "0.9.2") == {"task": "embed"}


def test_v0_pools_if_its_engine_has_pooling_requests(
    vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each request in V0 of 0.10 was an error instead of not applicable."""
    vllm(None)
    monkeypatch.setitem(sys.modules, "vllm.engine.llm_engine", SimpleNamespace())
    with pytest.raises(Unsupported, match="pooling in V0") as refused:
        plan("embed", "V0", NEW, "0.10.2")
    assert refused.value.claim["until"] == "0.10.1.1"
    monkeypatch.setitem(sys.modules, "vllm.engine.llm_engine", SimpleNamespace(PoolingParams=None))
    assert plan("embed", "V0", {"task"}, "0.9.2") == {"task": "embed"}
