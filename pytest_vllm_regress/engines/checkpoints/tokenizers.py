"""The tokenizers of the forged checkpoints, with the special tokens that vLLM's models and parsers
need: their vocabularies and ids. The form of their files is in ``models.toml``."""

from __future__ import annotations

import base64
import string
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...target_site.vllm_regress_target.script_format import END, START
from ...target_site.vllm_regress_target.vocabularies import byte_letters
from .models import families, filled, json_bytes, merged, padded_size

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] in ('video', 'video_url') %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT_PART = "{% elif part['type'] == 'text' %}"
SPACE = "\u2581"
_UNKNOWN, _BEGIN, _END = "<unk>", "<s>", "</s>"
_NORMAL, _UNK, _CONTROL, _BYTE = 1, 2, 3, 6  # SentencePiece.Type of sentencepiece_model.proto
_BPE = 2  # TrainerSpec.ModelType


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer: its ``files``, the ``ids`` of its special tokens and markers, and the vocabulary
    ``size`` of its models.

    ``begin``, ``end`` and ``pad`` are the texts of the tokens that its models put around a text.
    ``values``: what its models' documents name (``models.toml``).
    """

    ids: Mapping[str, int]
    size: int
    files: Mapping[str, bytes]
    begin: str
    end: str
    pad: str
    values: Mapping[str, Any] = field(default_factory=dict)


def added_tokens() -> dict[str, int]:
    """Return the ids of the special tokens and markers, which follow those of the vocabulary."""
    first = len(vocabulary()[0])
    names = tokens("special") + tokens("markers")
    return {content: first + number for number, content in enumerate(names)}


def tokens(name: str) -> list[str]:
    """Return a list of tokens by its name in ``models.toml``."""
    return list(families()["tokens"][name])


def vocabulary() -> tuple[dict[str, int], list[str]]:
    """Return byte-level tokens and merges, in the printable alphabet of GPT-2's tokenizer."""
    alphabet = byte_letters()
    vocabulary = {alphabet[byte]: byte for byte in range(256)}
    merges: list[str] = []
    for word in tokens("words"):
        spelled = [alphabet[byte] for byte in word.encode()]
        for end in range(2, len(spelled) + 1):
            left, right = "".join(spelled[: end - 1]), spelled[end - 1]
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
                merges.append(f"{left} {right}")
    return vocabulary, merges


def byte_level(
    *templates: str,
    markers: Sequence[str] | None = None,
    places: Sequence[str] = (),
    chat_template: str = CHAT_TEMPLATE,
) -> Tokenizer:
    """Return the tokenizer of Qwen's models: byte-level BPE.

    ``markers`` and ``places`` follow the special tokens; ``places`` are special, too.
    """
    letters, merges = vocabulary()
    specials = tokens("special")
    markers = tokens("markers") if markers is None else [START, END, *markers]
    added = dict.fromkeys([*specials, *markers, *places])
    ids = {text: len(letters) + number for number, text in enumerate(added)}
    values = {
        "letters": letters,
        "merges": merges,
        "specials": [*specials[1:], START, END, *places],
        "chat_template": chat_template,
    }
    special = {*specials, START, END, *places}
    files = _files(("bytes", *templates), ids, special, values)
    files["merges.txt"] = ("#version: 0.2\n" + "\n".join(merges) + "\n").encode()
    size = padded_size(len(letters) + len(ids))
    end = "<|endoftext|>"
    return Tokenizer(ids, size, files, end, "<|im_end|>", end, {"chat_template": chat_template})


def audio() -> Tokenizer:
    """Return the tokenizer of Qwen2-Audio."""
    places = tokens("sound")
    part = "{% elif part['type'] == 'audio' %}" + "".join(places) + _TEXT_PART
    template = CHAT_TEMPLATE.replace(_TEXT_PART, part)
    return byte_level("audio", places=places, chat_template=template)


def speech() -> Tokenizer:
    """Return the tokenizer of the text models with additional tokens for Whisper's languages and
    tasks. They are special in the configuration only, so that decoded text shows them."""
    languages, tasks = ([f"<|{name}|>" for name in tokens(key)] for key in ("languages", "tasks"))
    names = ["<|startoftranscript|>", *languages, *tasks]
    text = byte_level("speech", markers=[*tokens("markers"), *names])
    special = byte_level("speech", places=names).files["tokenizer_config.json"]
    return replace(
        text,
        files={**text.files, "tokenizer_config.json": special},
        end="<|endoftext|>",
        values={"languages": {name: text.ids[name] for name in languages}},
    )


def with_pieces(model: str, *templates: str) -> Tokenizer:
    """Return a tokenizer of sentencepiece: the file ``model``, and an equivalent tokenizer.json
    where one template describes both (Llama's); GPT-SW3's has only the model file."""
    listed = [text for text, _, _ in pieces()]
    letters = {text: number for number, text in enumerate(listed)}
    added = ("<|im_start|>", "<|im_end|>", START, END)
    ids = {text: letters[text] for text in ("<unk>", "<s>", "</s>")}
    ids |= {text: len(listed) + number for number, text in enumerate(added)}
    pairs = [" ".join(pair) for pair in _merges()]
    values = {"letters": letters, "merges": pairs, "chat_template": CHAT_TEMPLATE}
    files = {**_files(templates, ids, ids, values), model: model_file()}
    if len(templates) > 1:
        del files["tokenizer.json"]
    return Tokenizer(ids, padded_size(max(ids.values()) + 1), files, "<s>", "<|im_end|>", "</s>")


def pieces() -> list[tuple[str, float, int]]:
    """Return text, score and type of each token of a sentencepiece tokenizer with byte fallback, in
    the order of their numbers.

    The bytes come first, so that the token of a byte has the byte's number, as in the byte-level
    vocabulary, and scripts work with both.
    """
    listed = [(f"<0x{byte:02X}>", 0.0, _BYTE) for byte in range(256)]
    listed += [(_UNKNOWN, 0.0, _UNK), (_BEGIN, 0.0, _CONTROL), (_END, 0.0, _CONTROL)]
    letters = [(letter, -1e4, _NORMAL) for letter in (SPACE, *map(chr, range(0x21, 0x7F)))]
    return [
        *listed,
        *letters,
        *((left + right, -float(rank), _NORMAL) for rank, (left, right) in enumerate(_merges())),
    ]


def model_file() -> bytes:
    """Return the model file of sentencepiece, written without the library: a ModelProto
    (https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto): pieces,
    trainer and normalizer."""
    listed = b"".join(
        _field(1, _field(1, text.encode()) + _number(2, score) + _number(3, kind))
        for text, score, kind in pieces()
    )
    number = {text: place for place, (text, _, _) in enumerate(pieces())}
    ends = b"".join(
        _number(40 + at, number[text]) for at, text in enumerate((_UNKNOWN, _BEGIN, _END))
    )
    trainer = _number(3, _BPE) + _number(4, len(number)) + _number(35, 1) + ends + _number(43, -1)
    normalizer = _field(1, b"identity") + _number(3, 1) + _number(4, 0) + _number(5, 1)
    return listed + _field(2, trainer) + _field(3, normalizer)


def _merges() -> Iterator[tuple[str, str]]:
    """Yield the pairs of tokens that are merged, first ones first."""
    merged = set()
    for word in tokens("words"):
        if "\n" in word:  # encoded as bytes
            continue
        spelled = word.replace(" ", SPACE)
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in merged:
                merged.add(spelled[:end])
                yield spelled[: end - 1], spelled[end - 1]


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, content: bytes) -> bytes:
    """Encode a field of bytes."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, value: float) -> bytes:
    """Encode a field with an int or a float32."""
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    return _varint(number << 3) + _varint(value)


def words() -> Tokenizer:
    """Return BERT's tokenizer."""
    special = tokens("bert_special")
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    listed = dict.fromkeys(
        [*special, *letters, *(f"##{x}" for x in letters), *tokens("bert_words")]
    )
    vocabulary = {text: number for number, text in enumerate(listed)}
    ids = {text: vocabulary[text] for text in special}
    files = _files(("words",), ids, ids, {"letters": vocabulary})
    files["vocab.txt"] = "".join(f"{text}\n" for text in listed).encode()
    return Tokenizer(ids, padded_size(len(listed)), files, "[CLS]", "[SEP]", "[PAD]")


def tekken() -> Tokenizer:
    """Return Mistral's own tokenizer, tekken.json, which the package mistral_common reads, for
    engines with ``tokenizer_mode="mistral"``.

    Control tokens come first; additional ones fill the padding of the vocabulary, so that every
    token which a model may generate has a text. The vocabulary of the other text models follows in
    the same order, so token n of a script is number n of that vocabulary here, too. No text is
    encoded as a control token. The two tokens around scripts are therefore part of the vocabulary;
    the pattern never splits them.
    """
    bytes_of = {letter: byte for byte, letter in byte_letters().items()}
    listed = [bytes(map(bytes_of.__getitem__, text)) for text in vocabulary()[0]]
    listed += [START.encode(), END.encode()]
    control = tokens("control")
    size = padded_size(len(control) + 1 + len(listed))
    controls = size - len(listed)
    ids = {text: number for number, text in enumerate(control)}
    ids |= {text: controls + listed.index(text.encode()) for text in (START, END)}
    values = {
        "added": len(listed),
        "size": size,
        "controls": controls,
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": _text(word)}
            for rank, word in enumerate(listed)
        ],
        "control": [
            {"rank": rank, "token_str": text, "is_control": True}
            for rank, text in enumerate(control)
        ],
    }
    return Tokenizer(ids, size, _files(("tekken",), ids, ids, values), "<s>", "</s>", "<pad>")


def _text(word: bytes) -> str | None:
    try:
        return word.decode()
    except UnicodeDecodeError:
        return None


def _files(
    templates: Sequence[str],
    ids: Mapping[str, int],
    special: Collection[str],
    values: Mapping[str, Any],
) -> dict[str, bytes]:
    """Return the files of tokenizer ``templates``, later ones over earlier ones."""
    flags = {
        text: {
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": text in special,
        }
        for text in ids
    }
    known = {
        "none": None,
        "added_tokens": [{"id": ids[text], **flags[text]} for text in ids],
        "decoder": {str(ids[text]): flags[text] for text in ids},
        **values,
    }
    documents: dict[str, Any] = {}
    for name in templates:
        for file, part in families()["tokenizers"][name].items():
            documents[file] = (
                merged(documents.get(file, {}), part) if file != "vocab.json" else part
            )
    return {file: json_bytes(filled(part, known, ids)) for file, part in documents.items()}
