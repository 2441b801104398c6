"""What the simulated model says: drawn tokens, or those of the script that the prompt holds.

A script is found in the prompt's own tokens and followed by the number of tokens already said, so it needs no channel of its own, and preemption,
chunked prefill, prefix caching and parallel workers cannot change it. The rest of vLLM stays as it is: a grammar still masks, penalties and
biases still count. Where they make the model say something else than its script, that is noted for the controller.
"""

import functools
import json
import os
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np
from vllm.logger import init_logger

from .. import script, vocabularies
from .draw import Draw, tokenizer_of

logger = init_logger("vllm.vllm_regress_sim")

LEAD = 80.0  # how far a scripted token is ahead: a temperature of 4 does not reach it, a bias of -100 does
_SHOWN = 40  # tokens of what was said, in a note
_SPACES = {0x120: " ", 0x10A: "\n"}  # in byte-level BPE's alphabet


class Speech:
    """Rows of logits that follow scripts where there are any.

    ``notes``: whether this worker writes down what could not be said; one rank of each group does.
    """

    def __init__(self, draw: Draw, model_config: Any, notes: bool) -> None:
        self._draw = draw
        self._notes = notes
        self._noted: Set[str] = set()
        document = tokenizer_of(model_config)
        self._numbers = vocabularies.Numbers(document)
        added = self._numbers.added
        self._markers = (added.get(script.START), added.get(script.END))
        self._texts: Dict[int, str] = {
            number: text for text, number in (document.get("model") or {}).get("vocab", {}).items()
        }
        self._texts.update({number: text for text, number in added.items()})
        self._decode = functools.lru_cache(maxsize=4096)(self._read)

    def row(self, request_id: str, prompt: List[int], output: List[int], adapter: bytes = b"") -> np.ndarray:
        """The row that follows `output` of the request."""
        row = self._draw.after(prompt + output, adapter)
        step = self._step(request_id, prompt, len(output))
        if step is None:
            return row
        row -= row.max() + LEAD
        for token, share in step:
            row[token] = np.log(share)
        return row

    def heard(self, request_id: str, prompt: List[int], output: List[int], token: int, row: Any) -> None:
        """Compare the token that was sampled with the script; `row` are the logits that the sampler was given."""
        if not self._notes or request_id in self._noted:
            return
        step = self._step(request_id, prompt, len(output))
        if step is None or any(token == wanted for wanted, _ in step):
            return
        if not self._follows(request_id, prompt, output):  # V0 asks what would follow a draft, too
            return
        masked = all(float(row[wanted]) == float("-inf") for wanted, _ in step)
        self._note(
            request_id,
            position=len(output),
            wanted=" or ".join(self._show([int(wanted)]) for wanted, _ in step),
            got=self._show([token]),
            said=self._show(output[-_SHOWN:]),
            why="masked" if masked else "sampled",
        )

    def _follows(self, request_id: str, prompt: List[int], output: List[int]) -> bool:
        steps = (self._step(request_id, prompt, position) for position in range(len(output)))
        return all(step and any(said == wanted for wanted, _ in step) for said, step in zip(output, steps))

    def _step(self, request_id: str, prompt: List[int], position: int) -> Optional[script.Step]:
        start, end = self._markers
        if start is None or end is None:
            return None
        try:
            payload = script.find(prompt, start, end)
            if payload is None:
                return None
            answers = self._decode(tuple(payload))
            choice = script.choice_of(request_id) if len(answers) > 1 else 0
            if choice >= len(answers):
                raise ValueError("choice {} has no script: {} were given".format(choice, len(answers)))
            return answers[choice].at(position, self._draw.end)
        except ValueError as error:
            self._note(request_id, problem=str(error))
            return None

    def _read(self, payload: Tuple[int, ...]) -> Tuple[script.Answer, ...]:
        answers = script.decode("".join(self._texts.get(token, "\ufffd") for token in payload))
        said = tuple(map(self._numbers.of, answers))
        for token in (token for answer in said for step in answer.steps for token, _ in step):
            if not int(token) < self._draw.vocab_size:
                raise ValueError("token {} is not in the vocabulary of {}".format(token, self._draw.vocab_size))
        return said

    def _show(self, tokens: Sequence[int]) -> str:
        """Tokens as text; bytes that are no UTF-8 as escapes."""
        spelled = (
            bytes([token - self._numbers.first])
            if 0 <= token - self._numbers.first < 256
            else self._texts.get(token, "<{}>".format(token)).translate(_SPACES).encode()
            for token in tokens
        )
        return b"".join(spelled).decode(errors="backslashreplace")

    def _note(self, request_id: str, **facts: Any) -> None:
        if not self._notes or request_id in self._noted:
            return
        self._noted.add(request_id)
        line = json.dumps({"request": request_id, **facts})
        logger.error("the script could not be said: %s", line)
        path = os.environ.get(script.FAULTS_VARIABLE)
        if path:
            with open(path, "a", encoding="utf-8") as file:  # one short write: lines of several workers do not mix
                file.write(line + "\n")
