"""gigatoken, a faster library, for the tokenizers and texts whose ids it is proven to give exactly.

tests/tokenizers/test_gigatoken.py has the proof: every character of Unicode in the neighbourhoods that matter, and
random texts.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megatron_ds.errors import ConfigError, Problem, Source
from megatron_ds.tokenizers.base import FlatIds
from megatron_ds.tokenizers.fast import FastTokenizer
from megatron_ds.tokenizers.word_rules import is_known_rule

# The versions that the proof was run with.
PROVEN_GIGATOKEN = "0.10."
PROVEN_TOKENIZERS = ("0.22.", "0.23.")

# What is a letter, a digit or a mark is said by each library's edition of Unicode: 17 in gigatoken, 16 in tokenizers. A
# text with one of the 4657 characters that differ is encoded by tokenizers.
OTHER_EDITION = (
    *((0x088F, 0x088F), (0x0C5C, 0x0C5C), (0x0CDC, 0x0CDC), (0xA7CE, 0xA7CF), (0xA7D2, 0xA7D2), (0xA7D4, 0xA7D4)),
    *((0xA7F1, 0xA7F1), (0x10940, 0x10959), (0x10EC5, 0x10EC7), (0x11DB0, 0x11DDB), (0x11DE0, 0x11DE9)),
    *((0x16EA0, 0x16EB8), (0x16EBB, 0x16ED3), (0x16FF2, 0x16FF6), (0x187F8, 0x187FF), (0x18D09, 0x18D1E)),
    *((0x18D80, 0x18DF2), (0x1E6C0, 0x1E6DE), (0x1E6E0, 0x1E6E2), (0x1E6E4, 0x1E6E5), (0x1E6E7, 0x1E6ED)),
    *((0x1E6F0, 0x1E6F4), (0x1E6FE, 0x1E6FF), (0x2B73A, 0x2B73F), (0x2CEA2, 0x2CEAD), (0x323B0, 0x33479)),
)

# gigatoken remembers every word that it has seen, without end. When the process has grown by this much, it starts anew,
# which costs a tenth of a second.
MOST_GROWTH_BYTES = 8 << 20
# Where the size of the process is not known: random words make it grow by eight times their length.
MOST_TEXT_CHARACTERS = 1 << 20

_PROBE = (
    "def f(x):\n\treturn [x['a'], 12345.6]  # isn't it?\r\n\r\n   naïve café e\u0301 日本語 русский हिन्दी ½Ⅷ \u3000"
    "👩‍👩‍👧🇩🇪 \x00\x7f\u2028We'LL they've 'ſ don’t \u200b\ufeff <|endoftext|> __init__ == !!! "
)


class GigatokenTokenizer:
    """A `FastTokenizer` whose documents are encoded by gigatoken. Everything else is the `tokenizers` library's.

    Args:
        fast: the tokenizer.

    Raises:
        ConfigError: gigatoken is not installed, or not proven to give this tokenizer's ids; says why.
    """

    def __init__(self, fast: FastTokenizer) -> None:
        content = fast.content()
        why_not = why_not_installed() or why_not_proven(content)
        if why_not:
            raise ConfigError(_refusal(why_not))
        self._fast = fast
        self._encoder = _load(fast.to_json_without_special_tokens())
        self._is_other_edition = _other_edition_table()
        if self._encoder.encode(_PROBE).tolist() != fast.encode(_PROBE):
            raise ConfigError(_refusal("gigatoken gives other ids than tokenizers on this machine"))
        self.vocab_size = fast.vocab_size
        self.eod_id = fast.eod_id
        self.sentinel_ids = fast.sentinel_ids

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex: that of the tokenizer without gigatoken, as the ids are the same."""
        return self._fast.fingerprint

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """The ids of `text`, without any special tokens around it."""
        if allow_special:
            return self._fast.encode(text, allow_special=True)
        ids: list[int] = self._encode_plain(text).tolist()
        return ids

    def encode_flat(self, texts: Sequence[str], *, allow_special: bool = False) -> FlatIds:
        """The ids of all texts in one array, uint32 where gigatoken made it."""
        if allow_special:
            return self._fast.encode_flat(texts, allow_special=True)
        self._encoder.forget_if_grown()
        return FlatIds.of_arrays([self._encode_plain(text) for text in texts])

    def _encode_plain(self, text: str) -> NDArray[Any]:
        if not text.isascii() and self._has_other_edition(text):
            return self._fast.encode_flat([text]).ids
        return self._encoder.encode(text)

    def _has_other_edition(self, text: str) -> bool:
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        return bool(self._is_other_edition[np.minimum(codes, len(self._is_other_edition) - 1)].any())

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; special tokens are shown as their strings."""
        return self._fast.decode(ids)


def _load(tokenizer_json: str) -> _Encoder:
    try:
        return _Encoder(tokenizer_json)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(_refusal(f"gigatoken says {str(error).splitlines()[0]}")) from None


def _other_edition_table() -> NDArray[np.bool_]:
    """Whether each character is one of `OTHER_EDITION`; the last entry stands for all that come after."""
    table = np.zeros(max(last for _, last in OTHER_EDITION) + 2, np.bool_)
    for first, last in OTHER_EDITION:
        table[first : last + 1] = True
    return table


class _Encoder:
    """gigatoken's tokenizer with bounded memory.

    Args:
        tokenizer_json: content of a ``tokenizer.json`` without special tokens, which gigatoken would always match.
    """

    def __init__(self, tokenizer_json: str) -> None:
        self._json = tokenizer_json
        self._start_anew()

    def _start_anew(self) -> None:
        import gigatoken

        self._backend = gigatoken.Tokenizer.from_json(self._json)
        self._num_characters = 0
        # Taken when it is first asked for, which is in another process than this one when that forks.
        self._bytes_at_start: int | None = None

    def encode(self, text: str) -> NDArray[np.uint32]:
        """The ids of `text`."""
        self._num_characters += len(text)
        ids: NDArray[np.uint32] = self._backend.encode(text)
        return ids

    def forget_if_grown(self) -> None:
        """Drops the words that were seen when they have become many."""
        now = _resident_bytes()
        if self._bytes_at_start is None:
            self._bytes_at_start = now
        if now is None or self._bytes_at_start is None:
            is_grown = self._num_characters >= MOST_TEXT_CHARACTERS
        else:
            is_grown = now - self._bytes_at_start >= MOST_GROWTH_BYTES
        if is_grown:
            # First, so that there are never two.
            del self._backend
            self._start_anew()


def _resident_bytes() -> int | None:
    """Memory of this process; None where the system does not tell it in a file."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return None
    return int(pages) * mmap.PAGESIZE


def why_not_installed() -> str | None:
    """Why there is no gigatoken that the proof holds for; None if there is one."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found, reference = version("gigatoken"), version("tokenizers")
    except PackageNotFoundError:
        return "it is not installed"
    if not found.startswith(PROVEN_GIGATOKEN) or not reference.startswith(PROVEN_TOKENIZERS):
        return f"version {found} was not compared with tokenizers {reference}"
    try:
        import gigatoken  # noqa: F401 – its machine code may be for another processor or system
    except ImportError as error:
        return f"it can't be imported ({error})"
    return None


def why_not_proven(content: dict[str, Any]) -> str | None:
    """What keeps a tokenizer from being of a kind that gigatoken is proven to give the exact ids of; None if nothing.

    Args:
        content: of the tokenizer.json.
    """
    return next(_doubts(content), None)


def _doubts(content: dict[str, Any]) -> Iterator[str]:
    model = content["model"]
    if model["type"] != "BPE":
        yield f"the model is {model['type']}, not a byte-level BPE"
    if content["normalizer"] is not None:
        yield f"there is a normaliser, {content['normalizer']['type']}"
    if not is_known_rule(content["pre_tokenizer"]):
        yield "its rule for cutting text into words is not that of GPT-2, GPT-4, Llama 3 or Qwen 2"
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(name):
            yield f"the model has a {name}"
    for token in content["added_tokens"]:
        if not token["special"]:
            yield f"there are added tokens that documents may have, such as {token['content']!r}"
    if not _byte_letters() <= model["vocab"].keys():
        yield "not every byte has a token"


def _byte_letters() -> set[str]:
    import tokenizers

    return set(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def _refusal(why: str) -> Problem:
    return Problem(
        f"gigatoken can't encode with this tokenizer: {why}",
        sources=(Source("tokenizer_backend", "gigatoken", "--tokenizer-backend"),),
        advice="use --tokenizer-backend auto or tokenizers; gigatoken comes with `pip install megatron-ds[fast]`",
    )
