"""A space of texts: any string up to a length, which `gymnasium.spaces.Text` cannot be.

`Text` lists its characters one by one; its default set has no blank, no punctuation and no accent, and a set of all of
Unicode takes seconds and hundreds of megabytes. Passages, questions and answers are ordinary text, so the only limits
here are the length and that the string can be encoded (no lone surrogates).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector.utils import create_shared_memory
from gymnasium.wrappers.utils import create_zero_array

from mempo_env.checks import whole_number

#: Longest text of an environment's own spaces, in characters. A bound that nobody meets, not a budget.
MAX_TEXT_CHARS = 2**31 - 1

#: `sample` draws texts up to this many characters, whatever `max_length` allows.
SAMPLE_CHARS = 64

# Markup, blanks, accents, other scripts and a character beyond the basic plane: what real texts hold.
_SAMPLE_ALPHABET = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n.,;:?!'\"()[]{}<>/\\|_-+=*&%$#@^~`"
    "àéîõüßñçøåŁžœ\u0301\u00a0αβγδωЖдюяשלוםمرحبا東京日本語中文한국어हिन्दी–—“”…€°²½😀🧠🇫🇷\u200d"
)


class Unicode(Space[str]):
    """All strings of at most `max_length` characters (code points) that UTF-8 can encode. The empty one is among them.

    >>> Unicode(max_length=100)
    Unicode(max_length=100)
    >>> "Crème – 東京 🧠" in Unicode(max_length=100), "\\ud800" in Unicode(max_length=100)
    (True, False)

    Args:
        max_length: Most characters, at least 0. The default is a bound that no text meets.
        seed: Seed or generator of `sample`.

    Raises:
        TypeError: `max_length` is not an integer.
        ValueError: `max_length` is negative.
    """

    def __init__(self, max_length: int = MAX_TEXT_CHARS, *, seed: int | np.random.Generator | None = None) -> None:
        self.max_length = whole_number("max_length", max_length, least=0)
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Texts have no fixed-size array form."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A random text of 0 to min(max_length, 64) characters, for checkers and smoke tests.

        Raises:
            ValueError: A mask or a probability was given; this space has no finite list of characters to weigh.
        """
        if mask is not None or probability is not None:
            raise ValueError("Unicode.sample takes no mask and no probability: its characters are all of Unicode.")
        length = int(self.np_random.integers(0, min(self.max_length, SAMPLE_CHARS) + 1))
        picks = self.np_random.integers(0, len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[i] for i in picks)

    def contains(self, x: Any) -> bool:
        """True for a string of at most `max_length` characters without lone surrogates."""
        if not isinstance(x, str) or len(x) > self.max_length:
            return False
        try:
            x.encode("utf-8")
        except UnicodeEncodeError:
            return False
        return True

    def __repr__(self) -> str:
        return f"Unicode(max_length={self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode) and self.max_length == other.max_length

    __hash__ = None  # type: ignore[assignment]  # as for Gymnasium's own spaces, which hold a generator


# What wrappers that stack or delay observations fill up with before there are any.
@create_zero_array.register(Unicode)
def _no_text(space: Unicode) -> str:  # type: ignore[misc]  # its annotation wants a generic space
    return ""


# Gymnasium's synchronous vector environment and its asynchronous one without shared memory batch this space into a
# tuple of strings by themselves. Shared memory cannot hold strings of any length: say so instead of failing obscurely.
@create_shared_memory.register(Unicode)
def _no_shared_memory(space: Unicode, n: int = 1, ctx: Any = None) -> Any:
    raise ValueError(
        "AsyncVectorEnv cannot keep texts in shared memory. Pass shared_memory=False, as in "
        "gym.make_vec(id, num_envs=8, vectorization_mode='async', vector_kwargs={'shared_memory': False}); or leave "
        "vectorization_mode out: the environment's own vector environment does one batched search per step."
    )
