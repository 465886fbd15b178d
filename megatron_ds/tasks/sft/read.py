"""Reads examples of instruction tuning from JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from megatron_ds.data.documents import BadDocumentError
from megatron_ds.data.json_lines import read_line_batches
from megatron_ds.errors import DataError, Problem
from megatron_ds.utils.text import has_bytes

_BATCH_BYTES = 1 << 20
_FORMS = (
    'a line is {"prompt": …, "response": …}, {"messages": [{"role": …, "content": …}, …]}, or '
    '{"conversations": [{"from": …, "value": …}, …]}'
)
# ShareGPT's names.
_ROLES = {"human": "user", "gpt": "assistant"}
ASSISTANT = "assistant"


@dataclass(frozen=True)
class Message:
    """One turn.

    Attributes:
        role: ``system``, ``user``, ``assistant``, or what else a chat template knows.
        content: what is said.
    """

    role: str
    content: str

    def as_dict(self) -> dict[str, str]:
        """As chat templates take it."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True)
class Conversation:
    """One example.

    Attributes:
        place: file and line.
        messages: its turns, at least one of them the assistant's.
        is_prompt_and_response: whether it was given as these two.
    """

    place: str
    messages: tuple[Message, ...]
    is_prompt_and_response: bool


def read_conversations(path: Path) -> Iterator[Conversation]:
    """Reads a file of JSON lines, which may be compressed (.gz, .bz2, .xz, .zst). Blank lines are skipped.

    Raises:
        DataError: the file is missing, has no examples, or a line is none of the forms. Names file and line.
    """
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise DataError(Problem(f"{path} {what}", advice="give files of JSON lines"))
    is_empty = True
    for batch in read_line_batches([path], _BATCH_BYTES):
        for index in range(len(batch)):
            try:
                document = batch.document(index)
                if document is None:
                    continue
                conversation = _conversation(document, batch.place(index))
            except BadDocumentError as error:
                raise DataError(Problem(f"{batch.place(index)} {error.detail}", advice=_FORMS)) from None
            is_empty = False
            yield conversation
    if is_empty:
        raise DataError(Problem(f"{path} has no examples", advice=_FORMS))


def _conversation(document: Mapping[str, object], place: str) -> Conversation:
    has = ", ".join(map(repr, document)) or "none"
    if "messages" in document:
        messages = _turns(document["messages"], "messages", "role", "content")
    elif "conversations" in document:
        messages = tuple(
            Message(_ROLES.get(turn.role, turn.role), turn.content)
            for turn in _turns(document["conversations"], "conversations", "from", "value")
        )
    elif "prompt" in document and "response" in document:
        prompt, response = (_text(document, key, "") for key in ("prompt", "response"))
        return Conversation(place, (Message("user", prompt), Message(ASSISTANT, response)), True)
    else:
        raise BadDocumentError("no example", f"is no example; its keys are {has}")
    if all(message.role != ASSISTANT for message in messages):
        roles = ", ".join(dict.fromkeys(message.role for message in messages)) or "nobody"
        raise BadDocumentError("no assistant", f"has no turn of the assistant, only of {roles}")
    return Conversation(place, messages, False)


def _turns(turns: object, key: str, role: str, content: str) -> tuple[Message, ...]:
    if not isinstance(turns, list):
        raise BadDocumentError("no list", f"has a value of type {type(turns).__name__} under {key!r}, not a list")
    found = []
    for number, turn in enumerate(turns):
        of = f" in {key}[{number}]"
        if not isinstance(turn, dict):
            raise BadDocumentError("no turn", f"has a value of type {type(turn).__name__}{of}, not an object")
        found.append(Message(_text(turn, role, of), _text(turn, content, of)))
    return tuple(found)


def _text(document: Mapping[str, object], key: str, of: str) -> str:
    if key not in document:
        has = ", ".join(map(repr, document)) or "none"
        raise BadDocumentError("no key", f"has no key {key!r}{of}; it has {has}")
    text = document[key]
    if not isinstance(text, str):
        found = "null" if text is None else f"a value of type {type(text).__name__}"
        raise BadDocumentError("no text", f"has {found} under {key!r}{of} where a text belongs")
    if not has_bytes(text):
        raise BadDocumentError("no text", f"has half of a surrogate pair under {key!r}{of}, which is no text")
    return text
