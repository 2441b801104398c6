"""A Whisper checkpoint: an audio encoder and a text decoder, in the file layout of the original
releases."""

from __future__ import annotations

from typing import Any

from ..shapes import Shape, Tokenizer, Weights, json_bytes, padded_size
from ..tokenizers import MARKERS, SPECIALS, added_token, added_tokens, tokenizer_json, vocabulary

MELS = 80
_SOURCE = 1500  # positions of half a minute
_TARGET = 1024
# All languages of the original releases, because vLLM lets the model choose among those it knows
# when it detects the language.
_CODES = (
    "en zh de es ru ko fr ja pt tr pl ca nl ar sv it id hi fi vi he uk el ms cs ro da hu ta no th ur hr bg lt la mi ml "
    "cy sk te fa lv bn sr az sl kn et mk br eu is hy ne mn bs kk sq sw gl mr pa si km sn yo so af oc ka be tg sd gu am "
    "yi lo uz fo ht ps tk nn mt sa lb my bo tl mg as tt haw ln ha ba jw su"
)
_LANGUAGES = tuple(f"<|{code}|>" for code in _CODES.split())
_TASKS = (
    "<|startoftranscript|>",
    *_LANGUAGES,
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"),
    *("<|nospeech|>", "<|notimestamps|>", "<|0.00|>"),
)


def tokenizer() -> Tokenizer:
    """Return the tokenizer of the text models with additional tokens for the decoder's languages
    and tasks."""
    letters, merges = vocabulary()
    ids = added_tokens()
    ids |= {text: len(letters) + len(ids) + number for number, text in enumerate(_TASKS)}
    files = {
        "tokenizer.json": json_bytes(tokenizer_json(letters, merges, ids)),
        "tokenizer_config.json": json_bytes(_tokenizer_config(ids)),
        "vocab.json": json_bytes(letters),
        "merges.txt": ("#version: 0.2\n" + "\n".join(merges) + "\n").encode(),
        "normalizer.json": json_bytes({}),
    }
    return Tokenizer(
        ids,
        padded_size(len(letters) + len(ids)),
        files,
        "<|endoftext|>",
        "<|endoftext|>",
        "<|endoftext|>",
    )


def config(tokenizer: Tokenizer, shape: Shape) -> dict[str, Any]:
    end = tokenizer.ids["<|endoftext|>"]
    return {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "attention_dropout": 0.0,
        "bos_token_id": end,
        "d_model": shape.hidden,
        "decoder_attention_heads": shape.heads,
        "decoder_ffn_dim": shape.intermediate,
        "decoder_layerdrop": 0.0,
        "decoder_layers": shape.layers,
        "decoder_start_token_id": tokenizer.ids["<|startoftranscript|>"],
        "dropout": 0.0,
        "encoder_attention_heads": shape.heads,
        "encoder_ffn_dim": shape.intermediate,
        "encoder_layerdrop": 0.0,
        "encoder_layers": shape.layers,
        "eos_token_id": end,
        "init_std": 0.02,
        "is_encoder_decoder": True,
        "max_length": _TARGET,
        "max_source_positions": _SOURCE,
        "max_target_positions": _TARGET,
        "num_hidden_layers": shape.layers,
        "num_mel_bins": MELS,
        "pad_token_id": end,
        "scale_embedding": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": tokenizer.size,
    }


def documents(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the configuration of the feature extractor, and generation_config.json."""
    end = tokenizer.ids["<|endoftext|>"]
    return {
        "preprocessor_config.json": {
            **feature_extractor(30),
            "processor_class": "WhisperProcessor",
        },
        "generation_config.json": {
            "bos_token_id": end,
            "decoder_start_token_id": tokenizer.ids["<|startoftranscript|>"],
            "eos_token_id": end,
            "pad_token_id": end,
            "lang_to_id": {text: tokenizer.ids[text] for text in _LANGUAGES},
            "task_to_id": {
                text: tokenizer.ids[f"<|{text}|>"] for text in ("translate", "transcribe")
            },
            "no_timestamps_token_id": tokenizer.ids["<|notimestamps|>"],
        },
    }


def feature_extractor(seconds: int) -> dict[str, Any]:
    """Return the configuration of a feature extractor for audio of at most ``seconds``."""
    return {
        "chunk_length": seconds,
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": MELS,
        "hop_length": 160,
        "n_fft": 400,
        "n_samples": 16000 * seconds,
        "nb_max_frames": 100 * seconds,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
        "sampling_rate": 16000,
    }


def weights(vocabulary_size: int, s: Shape) -> Weights:
    yield from encoder_weights("model.encoder", _SOURCE, s)
    yield "model.decoder.embed_tokens.weight", (vocabulary_size, s.hidden)
    yield "model.decoder.embed_positions.weight", (_TARGET, s.hidden)
    yield from _layers("model.decoder", ("self_attn", "encoder_attn"), s)


def encoder_weights(at: str, positions: int, s: Shape) -> Weights:
    """Yield the weights of an audio encoder. ``at`` is the prefix of their names."""
    yield from linear(f"{at}.conv1", (s.hidden, MELS, 3))
    yield from linear(f"{at}.conv2", (s.hidden, s.hidden, 3))
    yield f"{at}.embed_positions.weight", (positions, s.hidden)
    yield from _layers(at, ("self_attn",), s)


def _layers(at: str, attentions: tuple[str, ...], s: Shape) -> Weights:
    for layer in range(s.layers):
        inside = f"{at}.layers.{layer}."
        for attention in attentions:
            yield f"{inside}{attention}.k_proj.weight", (s.hidden, s.hidden)
            for name in ("q_proj", "v_proj", "out_proj"):
                yield from linear(f"{inside}{attention}.{name}", (s.hidden, s.hidden))
            yield from _norm(f"{inside}{attention}_layer_norm", s)
        yield from linear(f"{inside}fc1", (s.intermediate, s.hidden))
        yield from linear(f"{inside}fc2", (s.hidden, s.intermediate))
        yield from _norm(f"{inside}final_layer_norm", s)
    yield from _norm(f"{at}.layer_norm", s)


def linear(name: str, shape: tuple[int, ...]) -> Weights:
    """Yield the weight and the bias of a linear or convolutional layer."""
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]


def _norm(name: str, s: Shape) -> Weights:
    yield f"{name}.weight", (s.hidden,)
    yield f"{name}.bias", (s.hidden,)


def _tokenizer_config(ids: dict[str, int]) -> dict[str, Any]:
    special = (*SPECIALS, *MARKERS[:2], *_TASKS)
    return {
        "tokenizer_class": "WhisperTokenizer",
        "processor_class": "WhisperProcessor",
        "added_tokens_decoder": {
            str(number): added_token(text, special=text in special) for text, number in ids.items()
        },
        "additional_special_tokens": list(special[1:]),
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "model_max_length": _TARGET,
        "clean_up_tokenization_spaces": False,
    }
