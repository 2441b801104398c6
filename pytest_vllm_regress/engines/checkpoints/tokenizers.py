"""The tokenizers of the forged checkpoints, with the special tokens that vLLM's models and parsers
need: their vocabularies and ids. The form of their files is in ``models.toml``."""

from __future__ import annotations

import base64
import dataclasses
import string
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ...target_site.vllm_regress_target.script import END, START
from ...target_site.vllm_regress_target.vocabularies import TEKKEN, byte_letters
from .models import families, filled, json_bytes, merged, padded_size

SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# Added after the special tokens, in the padding of the vocabulary, so that the ids of texts and the
# shapes of weights do not depend on them. The first two enclose scripts. vLLM's tool and reasoning
# parsers look for the others; they appear in decoded text, as in upstream's tokenizers.
MARKERS = (
    START,
    END,
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<tool_calls>",
    "</tool_calls>",
    "[TOOL_CALLS]",
    "<|python_tag|>",
    "<\uff5ctool\u2581calls\u2581begin\uff5c>",
    "<\uff5ctool\u2581calls\u2581end\uff5c>",
    "<\uff5ctool\u2581call\u2581begin\uff5c>",
    "<\uff5ctool\u2581call\u2581end\uff5c>",
    "<\uff5ctool\u2581sep\uff5c>",
)
# Tokens of several characters, which show faults at token level. Each is merged from the left, one
# character at a time. Qwen2's split never encodes some of them (": ", 12, 123), but models generate
# such tokens, and so can this one.
WORDS = (
    '":',
    '": "',
    '", "',
    '{"',
    '"}',
    '"]',
    "},",
    ' "',
    '":{"',
    '":["',
    " {",
    " [",
    "true",
    "false",
    "null",
    "00",
    "10",
    "12",
    "123",
    " the",
    "ing",
    "and",
    "  ",
    "\n\n",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] in ('video', 'video_url') %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT_PART = "{% elif part['type'] == 'text' %}"
# The tokens that mark where audio goes in a prompt of Qwen2-Audio.
_SOUND = ("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")
_SOUND_PART = "{% elif part['type'] == 'audio' %}" + "".join(_SOUND) + _TEXT_PART
# Numbered as in every tokenizer of Mistral up to version 7. mistral_common before 1.6 does not read
# control tokens from the file.
CONTROL = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
)
_SCRIPT = r"<\|(?:end_)?script\|>"
SPACE = "\u2581"
_UNKNOWN, _BEGIN, _END = "<unk>", "<s>", "</s>"
_NORMAL, _UNK, _CONTROL, _BYTE = 1, 2, 3, 6  # SentencePiece.Type of sentencepiece_model.proto
_BPE = 2  # TrainerSpec.ModelType
_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_BERT_WORDS = [
    "the",
    "cat",
    "on",
    "sat",
    "mat",
    "and",
    "##s",
    "##ing",
    "one",
    "two",
    "three",
    "what",
    "is",
    "a",
]


@dataclasses.dataclass(frozen=True)
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
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def added_tokens() -> dict[str, int]:
    """Return the ids of the special tokens and markers, which follow those of the vocabulary."""
    first = len(vocabulary()[0])
    return {content: first + number for number, content in enumerate((*SPECIALS, *MARKERS))}


def vocabulary() -> tuple[dict[str, int], list[str]]:
    """Return byte-level tokens and merges, in the printable alphabet of GPT-2's tokenizer."""
    alphabet = byte_letters()
    vocabulary = {alphabet[byte]: byte for byte in range(256)}
    merges: list[str] = []
    for word in WORDS:
        spelled = [alphabet[byte] for byte in word.encode()]
        for end in range(2, len(spelled) + 1):
            left, right = "".join(spelled[: end - 1]), spelled[end - 1]
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
                merges.append(f"{left} {right}")
    return vocabulary, merges


def byte_level(
    *templates: str,
    markers: Sequence[str] = MARKERS,
    places: Sequence[str] = (),
    chat_template: str = CHAT_TEMPLATE,
) -> Tokenizer:
    """Return the tokenizer of Qwen's models: byte-level BPE.

    ``markers`` and ``places`` follow the special tokens; ``places`` are special, too.
    """
    letters, merges = vocabulary()
    added = dict.fromkeys((*SPECIALS, START, END, *markers, *places))
    ids = {text: len(letters) + number for number, text in enumerate(added)}
    values = {
        "letters": letters,
        "merges": merges,
        "specials": [*SPECIALS[1:], START, END, *places],
        "chat_template": chat_template,
    }
    special = {*SPECIALS, START, END, *places}
    files = _files(("bytes", *templates), ids, special, values)
    files["merges.txt"] = ("#version: 0.2\n" + "\n".join(merges) + "\n").encode()
    size = padded_size(len(letters) + len(ids))
    end = "<|endoftext|>"
    return Tokenizer(ids, size, files, end, "<|im_end|>", end, {"chat_template": chat_template})


def vision() -> Tokenizer:
    """Return the tokenizer of Qwen2.5-VL."""
    return byte_level("vision")


def audio() -> Tokenizer:
    """Return the tokenizer of Qwen2-Audio."""
    template = CHAT_TEMPLATE.replace(_TEXT_PART, _SOUND_PART)
    return byte_level("audio", places=_SOUND, chat_template=template)


def speech() -> Tokenizer:
    """Return the tokenizer of the text models with additional tokens for Whisper's languages and
    tasks. They are special in the configuration only, so that decoded text shows them."""
    languages, tasks = (
        [f"<|{name}|>" for name in families()["tokens"][key]] for key in ("languages", "tasks")
    )
    names = ["<|startoftranscript|>", *languages, *tasks]
    text = byte_level("speech", markers=(*MARKERS, *names))
    special = byte_level("speech", places=names).files["tokenizer_config.json"]
    return dataclasses.replace(
        text,
        files={**text.files, "tokenizer_config.json": special},
        end="<|endoftext|>",
        values={"languages": {name: text.ids[name] for name in languages}},
    )


def fast_pieces() -> Tokenizer:
    """Return Llama's tokenizer: tokenizer.model, and an equivalent tokenizer.json."""
    return _with_pieces("tokenizer.model", "pieces")


def slow_pieces() -> Tokenizer:
    """Return GPT-SW3's tokenizer, which has only the model file."""
    return _with_pieces("spiece.model", "pieces", "slow-pieces")


def _with_pieces(model: str, *templates: str) -> Tokenizer:
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
    for word in WORDS:
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
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    listed = dict.fromkeys([*_BERT, *letters, *(f"##{x}" for x in letters), *_BERT_WORDS])
    vocabulary = {text: number for number, text in enumerate(listed)}
    ids = {text: vocabulary[text] for text in _BERT}
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
    size = padded_size(len(CONTROL) + 1 + len(listed))
    controls = size - len(listed)
    ids = {text: number for number, text in enumerate(CONTROL)}
    ids |= {text: controls + listed.index(text.encode()) for text in (START, END)}
    document = {
        "config": {
            "pattern": (
                _SCRIPT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                rf"| ?(?:(?!{_SCRIPT})[^\s\p{{L}}\p{{N}}])+[\r\n/]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            "num_vocab_tokens": len(listed),
            "default_vocab_size": size,
            "default_num_special_tokens": controls,
            "version": "v7",  # the newest that mistral_common 1.5 reads, which vLLM 0.7 requires
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": _text(word)}
            for rank, word in enumerate(listed)
        ],
        "special_tokens": [
            {"rank": rank, "token_str": text, "is_control": True}
            for rank, text in enumerate(CONTROL)
        ],
        "type": "Tekken",
    }
    return Tokenizer(ids, size, {TEKKEN: json_bytes(document)}, "<s>", "</s>", "<pad>")


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
