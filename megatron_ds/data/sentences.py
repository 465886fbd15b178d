"""Cuts documents into sentences, for models that train on pairs or spans of them."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_ds.errors import ConfigError, Problem, Source

# ISO 639-1 codes and the names that Megatron's --lang takes.
LANGUAGES = {
    "am": "amharic",
    "ar": "arabic",
    "bg": "bulgarian",
    "bn": "bengali",
    "ca": "catalan",
    "cs": "czech",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "et": "estonian",
    "fi": "finnish",
    "fr": "french",
    "gu": "gujarati",
    "hi": "hindi",
    "hy": "armenian",
    "it": "italian",
    "ja": "japanese",
    "kk": "kazakh",
    "kn": "kannada",
    "ml": "malayalam",
    "mr": "marathi",
    "my": "burmese",
    "nl": "dutch",
    "no": "norwegian",
    "pa": "punjabi",
    "pl": "polish",
    "pt": "portuguese",
    "ru": "russian",
    "sk": "slovak",
    "sl": "slovene",
    "sv": "swedish",
    "ta": "tamil",
    "te": "telugu",  # codespell:ignore te
    "tr": "turkish",
    "uk": "ukrainian",
    "zh": "chinese",
}

# sentencex 1.0 panics at some white space of several bytes (a no-break space after an initial). One character stands
# for one character, so that the pieces have the same lengths.
_PLAIN_SPACES = dict.fromkeys((0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000), " ")


@dataclass(frozen=True)
class SentenceSplitter:
    """Cuts texts into sentences by rules; nothing is downloaded.

    Attributes:
        language: code of the language, a key of `LANGUAGES`.
        keep_newlines: leave the white space between sentences at the end of the one before it, so that all sentences
            of a text together are the text. Otherwise it is dropped.
    """

    language: str
    keep_newlines: bool = False

    def split(self, text: str) -> list[str]:
        """The sentences of `text`, in order; none when it has nothing but white space."""
        pieces = _pieces(self.language, text)
        if self.keep_newlines:
            return _with_spaces(pieces)
        return [stripped for piece in pieces if (stripped := piece.strip())]


def find_language(name: str) -> str:
    """The code of a language.

    Args:
        name: a code (``en``) or a name (``english``), in any case.

    Raises:
        ConfigError: there are no rules for it. Names the languages that there are.
    """
    wanted = name.lower()
    for code, language in LANGUAGES.items():
        if wanted in (code, language):
            return code
    known = ", ".join(f"{code} ({language})" for code, language in LANGUAGES.items())
    raise ConfigError(
        Problem(
            f"there are no rules for sentences in {name!r}; there are some for {known}",
            sources=(Source("lang", name, "--lang"),),
            advice="give one of these codes or names; a related language often fits",
        )
    )


def _pieces(language: str, text: str) -> list[str]:
    """Pieces that together are the text; the break between two paragraphs is a piece of its own."""
    import sentencex

    pieces: list[str] = []
    end = 0
    for found in sentencex.segment(language, text.translate(_PLAIN_SPACES)):
        pieces.append(text[end : end + len(found)])
        end += len(found)
    assert end == len(text), "the pieces are all of the text"
    return pieces


def _with_spaces(pieces: list[str]) -> list[str]:
    """Joins pieces of white space alone to the sentence before them, those at the start to the first sentence."""
    sentences: list[str] = []
    start = ""
    for piece in pieces:
        if not piece.isspace():
            sentences.append(start + piece)
            start = ""
        elif sentences:
            sentences[-1] += piece
        else:
            start += piece
    return sentences
