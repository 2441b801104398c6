"""Load and unload an adapter as a server does, and list the adapters that the engine holds. Runs in the target interpreter."""

import importlib
import inspect
from types import SimpleNamespace

MODULES = ("vllm.entrypoints.openai.models.serving", "vllm.entrypoints.openai.serving_models")


async def load_and_unload(engine, name, path):
    models = _models(engine)
    request = SimpleNamespace(lora_name=name, lora_path=path, load_inplace=False, is_3d_lora_weight=False)
    await models.load_lora_adapter(request)
    number = models.lora_requests[name].lora_int_id
    adapters = {"loaded": sorted(await engine.list_loras())}
    await models.unload_lora_adapter(request)
    adapters["served"], adapters["held"] = list(models.lora_requests), sorted(await engine.list_loras())
    await engine.remove_lora(number)
    return {**adapters, "removed": sorted(await engine.list_loras())}


def _models(engine):
    """Return vLLM's own object behind /v1/models, /v1/load_lora_adapter and /v1/unload_lora_adapter."""
    module = next(importlib.import_module(name) for name in MODULES if _is_importable(name))
    base = module.BaseModelPath(name="base", model_path="base")
    arguments = {"engine_client": engine, "base_model_paths": [base], "model_config": engine.model_config}
    known = inspect.signature(module.OpenAIServingModels.__init__).parameters
    return module.OpenAIServingModels(**{key: value for key, value in arguments.items() if key in known})


def _is_importable(name):
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
