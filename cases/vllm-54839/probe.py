"""Loads and unloads an adapter as a server does it, and asks the engine what it holds. Runs inside the target interpreter."""

import importlib
import inspect
from types import SimpleNamespace

MODULES = ("vllm.entrypoints.openai.models.serving", "vllm.entrypoints.openai.serving_models")


async def load_and_unload(engine, name, path):
    models = _models(engine)
    asked = SimpleNamespace(lora_name=name, lora_path=path, load_inplace=False, is_3d_lora_weight=False)
    await models.load_lora_adapter(asked)
    number = models.lora_requests[name].lora_int_id
    found = {"loaded": sorted(await engine.list_loras())}
    await models.unload_lora_adapter(asked)
    found["served"], found["held"] = list(models.lora_requests), sorted(await engine.list_loras())
    await engine.remove_lora(number)
    return {**found, "removed": sorted(await engine.list_loras())}


def _models(engine):
    """vLLM's own object behind /v1/models, /v1/load_lora_adapter and /v1/unload_lora_adapter."""
    module = next(importlib.import_module(each) for each in MODULES if _is_there(each))
    base = module.BaseModelPath(name="base", model_path="base")
    given = {"engine_client": engine, "base_model_paths": [base], "model_config": engine.model_config}
    known = inspect.signature(module.OpenAIServingModels.__init__).parameters
    return module.OpenAIServingModels(**{key: value for key, value in given.items() if key in known})


def _is_there(name):
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
