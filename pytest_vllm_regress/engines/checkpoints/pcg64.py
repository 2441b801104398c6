"""The generator PCG64, seeded as numpy seeds it, for the weights of checkpoints.

Why not numpy? It would be a third of an installation, and a checkpoint needs some 400,000 numbers,
once.
Equal seeds give the bits of ``numpy.random.PCG64(seed).random_raw``, so that checkpoints are the
same as ever. Sources: O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good
Algorithms for Random Number Generation" (2014), and the documentation of numpy's ``SeedSequence``.
"""

from __future__ import annotations

from collections.abc import Iterator

_32, _64, _128 = (1 << 32) - 1, (1 << 64) - 1, (1 << 128) - 1
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_POOL = 4


def top_bits(seed: int) -> Iterator[int]:
    """Yield the 24 highest of the 64 bits of each number, without end."""
    words = _state(seed)
    first, second, third, fourth = (
        low | high << 32 for low, high in zip(words[::2], words[1::2], strict=True)
    )
    increment = ((third << 64 | fourth) << 1 | 1) & _128
    state = increment + (first << 64 | second)
    state = (state * _MULTIPLIER + increment) & _128
    while True:
        state = (state * _MULTIPLIER + increment) & _128
        mixed = (state >> 64) ^ (state & _64)
        rotation = state >> 122
        yield ((mixed >> rotation | mixed << (64 - rotation)) & _64) >> 40


def _state(seed: int) -> list[int]:
    """Return the eight words of 32 bits that a seed is spread over."""
    entropy = [seed >> shift & _32 for shift in range(0, max(seed.bit_length(), 1), 32)]
    mixed = _Hash(0x43B0D7E5, 0x931E8875)
    pool = [mixed(word) for word in (entropy + [0] * _POOL)[:_POOL]]
    for source in range(_POOL):
        for place in range(_POOL):
            if source != place:
                pool[place] = _joined(pool[place], mixed(pool[source]))
    for word in entropy[_POOL:]:
        for place in range(_POOL):
            pool[place] = _joined(pool[place], mixed(word))
    drawn = _Hash(0x8B51F9DD, 0x58F38DED)
    return [drawn(pool[place % _POOL]) for place in range(8)]


class _Hash:
    """A hash of words that depends on how many came before."""

    def __init__(self, constant: int, multiplier: int) -> None:
        self._constant = constant
        self._multiplier = multiplier

    def __call__(self, word: int) -> int:
        word ^= self._constant
        self._constant = self._constant * self._multiplier & _32
        word = word * self._constant & _32
        return word ^ word >> 16


def _joined(first: int, second: int) -> int:
    word = (0xCA01F9DD * first - 0x4973F715 * second) & _32
    return word ^ word >> 16
