"""vLLM's own loaders load what the simulated device uses, and reject a damaged checkpoint: its
tokenizer, chat template, generation
configuration and adapters."""

from __future__ import annotations

import pytest

from tests.helpers.environments import require_environment

pytestmark = pytest.mark.engine
ENVIRONMENTS = ("vllm-0.8.5", "vllm-0.33.0")

TESTS = """
    import json
    import shutil
    from pathlib import Path
    import pytest
    from pytest_vllm_regress import ChildError
    from pytest_vllm_regress.engines.checkpoints.forge import ensure_checkpoint
    from pytest_vllm_regress.errors import Part
    from pytest_vllm_regress.util.paths import cache_root

    LORA = {"enable_lora": True, "max_lora_rank": 8}

    def damaged(folder, **files):
        shutil.copytree(ensure_checkpoint("text", cache_root() / "checkpoints"), folder)
        for name, change in files.items():
            file = folder / f"{name}.json"
            document = json.loads(file.read_text())
            file.write_text("{" if change is None else json.dumps({**document, **change}))
        return str(folder)

    @pytest.fixture(scope="module")
    def server(vllm_engines, tmp_path_factory):
        "One server for everything that is loaded on request. Its defaults come from the checkpoint."
        model = damaged(
            tmp_path_factory.mktemp("model") / "odd",
            tokenizer_config={"chat_template": "{{ raise_exception('this template refuses') }}"},
            generation_config={"temperature": 0.0},
        )
        server = vllm_engines(front="serve", generation="V1", model=model, extra=LORA)
        yield server
        vllm_engines.release(server)

    def complete(server, **more):
        return server.post("/v1/completions", {"model": server.model, "prompt": "Hello", "ignore_eos": True, **more})

    def test_generation_config(server):
        default = {complete(server).json()["choices"][0]["text"] for _ in range(3)}
        other = {complete(server, temperature=1.0).json()["choices"][0]["text"] for _ in range(3)}
        assert len(default) == 1 and len(other) > 1

    def test_generation_config_that_is_refused(vllm_engines, tmp_path):
        model = damaged(tmp_path / "odd", generation_config={"temperature": -1.0})
        with pytest.raises(ChildError) as caught:
            vllm_engines(front="serve", generation="V1", model=model)
        assert "temperature must be non-negative, got -1.0" in caught.value.args[0]

    def test_chat_template(server):
        body = {"model": server.model, "messages": [{"role": "user", "content": "Hello"}]}
        answer = server.post("/v1/chat/completions", body)
        assert answer.status_code == 400, answer.text
        assert any(text in answer.text for text in ("this template refuses", '"message":""')), answer.text  # 0.8.5 loses the message
        assert complete(server).status_code == 200

    @pytest.mark.parametrize("what", ["missing", "empty", "without weights"])
    def test_adapter(server, tmp_path, what):
        folder = tmp_path / "adapter"
        if what != "missing":
            folder.mkdir()
        if what == "without weights":
            config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}
            (folder / "adapter_config.json").write_text(json.dumps(config))
        answer = server.post("/v1/load_lora_adapter", {"lora_name": "none", "lora_path": str(folder)})
        assert answer.status_code in (400, 404, 500), answer.text
        assert complete(server, model="none").status_code == 404
        assert complete(server).status_code == 200

    def test_tokenizer(vllm_engines, tmp_path):
        model = damaged(tmp_path / "odd", tokenizer=None)
        Path(model, "vocab.json").unlink()  # so that vLLM cannot build a tokenizer from it
        with pytest.raises(ChildError) as caught:
            vllm_engines(generation="V1", model=model)
        assert caught.value.kind == "exception" and "tokenizer" in caught.value.parts[Part.TRACEBACK], str(caught.value)
"""


@pytest.mark.usefixtures("user_caches")
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_damaged_files_are_rejected(pytester: pytest.Pytester, environment: str) -> None:
    require_environment(environment)
    pytester.makepyfile(TESTS)
    options = (
        f"--vllm-env={environment}",
        "--vllm-device=sim",
        "--vllm-leftovers=fail",
        "-p",
        "no:cacheprovider",
    )
    result = pytester.runpytest_subprocess(*options, "-p", "no:randomly")
    result.assert_outcomes(passed=7)
