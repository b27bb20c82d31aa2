"""Counter-based randomness: every draw and every permutation is a pure function of a key and a counter.

Nothing here holds state, so entity 700,000 of a world costs as much as entity 0 and nothing has to be remembered.
"""

from __future__ import annotations

import hashlib
from math import isqrt

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def key_of(*labels: object) -> int:
    """A 64-bit key from labels (numbers, strings). Differs between platforms or processes never."""
    text = "\x1f".join(map(str, labels)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def draw(key: int, counter: int) -> int:
    """The 64-bit random number at `counter` of the stream `key` (splitmix64's output function, Steele et al. 2014)."""
    z = (key + (counter + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Permutation:
    """A keyed bijection of 0..n-1 with its inverse, in constant time and memory.

    A four-round Feistel network on the pair (i // b, i % b), with addition modulo a and b in place of exclusive or, so
    that it is exact on a grid of any shape; numbers that leave 0..n-1 are sent through again until they return.
    """

    __slots__ = ("_a", "_b", "_keys", "n")

    def __init__(self, key: int, n: int) -> None:
        if n < 1:
            raise ValueError(f"A permutation needs n >= 1, got {n}.")
        self.n = n
        self._b = isqrt(n - 1) + 1
        self._a = -(-n // self._b)
        self._keys = tuple(draw(key, r) for r in range(4))

    def __call__(self, i: int) -> int:
        a, b = self._a, self._b
        k0, k1, k2, k3 = self._keys
        while True:
            x, y = divmod(i, b)
            x = (x + draw(k0, y)) % a
            y = (y + draw(k1, x)) % b
            x = (x + draw(k2, y)) % a
            y = (y + draw(k3, x)) % b
            i = x * b + y
            if i < self.n:
                return i

    def inverse(self, i: int) -> int:
        a, b = self._a, self._b
        k0, k1, k2, k3 = self._keys
        while True:
            x, y = divmod(i, b)
            y = (y - draw(k3, x)) % b
            x = (x - draw(k2, y)) % a
            y = (y - draw(k1, x)) % b
            x = (x - draw(k0, y)) % a
            i = x * b + y
            if i < self.n:
                return i
