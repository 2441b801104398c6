"""Build prompts for vLLM.

Images, sounds and embeddings, which JSON cannot hold, are generated from a few numbers.
"""

import base64
import json
import os
from typing import Any, Union

Json = dict[str, Any]
Prompt = Union[str, Json]

RATE = 16000
_GENERATED = ("image", "images", "audio", "embeds")


def as_prompt(prompt: Prompt, model: str) -> Any:
    """Return the prompt of a request to the checkpoint at the path `model`.

    With the text there may be ``image`` (or ``images``, a list): {"size": [w, h], "color": [r, g,
    b]} or {"base64": data}; or ``audio``: {"seconds": 1.5, "pitch": 440}. Instead of text there may
    be ``embeds``: {"length": tokens, "seed": 0}. Other prompts are unchanged.
    """
    if isinstance(prompt, str) or not any(name in prompt for name in _GENERATED):
        return prompt
    if "embeds" in prompt:
        return {"prompt_embeds": _embeddings(prompt["embeds"], model)}
    data: Json = {}
    if "image" in prompt:
        data["image"] = _image(prompt["image"])
    if "images" in prompt:
        data["image"] = [_image(image) for image in prompt["images"]]
    if "audio" in prompt:
        data["audio"] = (tone(**prompt["audio"]), RATE)
    return {
        **{name: value for name, value in prompt.items() if name not in _GENERATED},
        "multi_modal_data": data,
    }


def _image(description: Json) -> Any:
    from PIL import Image

    if "base64" in description:
        import io

        return Image.open(io.BytesIO(base64.b64decode(description["base64"])))
    return Image.new(
        "RGB", tuple(description["size"]), tuple(description.get("color", (127, 127, 127)))
    )


def tone(seconds: float, pitch: float = 440) -> Any:
    """Return a tone of ``pitch`` Hz, ``RATE`` samples per second, from -1 to 1."""
    import numpy as np

    times = np.arange(int(seconds * RATE)) / RATE
    return np.sin(2 * np.pi * pitch * times).astype(np.float32)


def _embeddings(description: Json, model: str) -> Any:
    """Return a row of normal noise for each token."""
    import torch

    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    noise = torch.Generator().manual_seed(description.get("seed", 0))
    return torch.randn(
        description["length"], (config.get("text_config") or config)["hidden_size"], generator=noise
    )
