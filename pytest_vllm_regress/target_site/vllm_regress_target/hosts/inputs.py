"""Prompts as vLLM takes them: what JSON cannot carry (images, sounds, embeddings) is made here from a few numbers."""

import base64
import json
import os
from typing import Any, Dict, Union

Json = Dict[str, Any]
Prompt = Union[str, Json]

RATE = 16000
_MADE = ("image", "images", "audio", "embeds")


def as_prompt(prompt: Prompt, model: str) -> Any:
    """The prompt of a request, for the checkpoint at the path `model`.

    Beside text there may be ``image`` (or ``images``, several): {"size": [w, h], "color": [r, g, b]} or {"base64": data}; or ``audio``:
    {"seconds": 1.5, "pitch": 440}. In place of text there may be ``embeds``: {"length": tokens, "seed": 0}. What vLLM itself takes is left as it is.
    """
    if isinstance(prompt, str) or not any(name in prompt for name in _MADE):
        return prompt
    if "embeds" in prompt:
        return {"prompt_embeds": _embeddings(prompt["embeds"], model)}
    data: Json = {}
    if "image" in prompt:
        data["image"] = _image(prompt["image"])
    if "images" in prompt:
        data["image"] = [_image(each) for each in prompt["images"]]
    if "audio" in prompt:
        data["audio"] = (tone(**prompt["audio"]), RATE)
    return {**{name: value for name, value in prompt.items() if name not in _MADE}, "multi_modal_data": data}


def _image(given: Json) -> Any:
    from PIL import Image

    if "base64" in given:
        import io

        return Image.open(io.BytesIO(base64.b64decode(given["base64"])))
    return Image.new("RGB", tuple(given["size"]), tuple(given.get("color", (127, 127, 127))))


def tone(seconds: float, pitch: float = 440) -> Any:
    """A tone of ``pitch`` Hz, ``RATE`` samples a second, from -1 to 1."""
    import numpy as np

    moments = np.arange(int(seconds * RATE)) / RATE
    return np.sin(2 * np.pi * pitch * moments).astype(np.float32)


def _embeddings(given: Json, model: str) -> Any:
    """A row of normal noise for each token."""
    import torch

    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    noise = torch.Generator().manual_seed(given.get("seed", 0))
    return torch.randn(given["length"], (config.get("text_config") or config)["hidden_size"], generator=noise)
