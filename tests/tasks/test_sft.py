from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from megatron_ds.errors import ConfigError, DataError
from megatron_ds.tasks.sft.encode import SftExamples, encode_sft
from megatron_ds.tasks.sft.packing import pack
from megatron_ds.tasks.sft.read import Conversation, Message, read_conversations
from megatron_ds.tasks.sft.samples import SftSequences, make_sft_batch
from megatron_ds.tokenizers import build_tokenizer
from tests.tasks.chat import ask, load, save_tokenizer, talk
from tests.tokenizers.conftest import Flags

BYTES = build_tokenizer(Flags("ByteTokenizer"))
EOD = BYTES.eod_id
PAD = 77


def read_lines(path: Path, *lines: object) -> list[Conversation]:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return list(read_conversations(path))


def encoded(*pairs: tuple[str, str], seq_length: int = 16) -> SftExamples:
    return encode_sft([ask(*pair) for pair in pairs], BYTES, None, seq_length)


def sequences(examples: SftExamples, *, packing: bool, seq_length: int = 16) -> SftSequences:
    return SftSequences(examples, path="a.jsonl", seq_length=seq_length, packing=packing, pad_id=PAD)


def test_read_conversations_takes_three_forms(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    found = read_lines(
        path,
        {"prompt": "a", "response": "b", "source": "x"},
        "",
        {"messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "b", "name": None}]},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "id": 3},
    )
    assert found == [
        Conversation(f"{path}:1", (Message("user", "a"), Message("assistant", "b")), True),
        Conversation(f"{path}:3", (Message("system", "s"), Message("assistant", "b")), False),
        Conversation(f"{path}:4", (Message("user", "a"), Message("assistant", "b")), False),
    ]


def test_read_conversations_of_a_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a", "response": "b"}\n'))
    assert [each.place for each in read_conversations(path)] == [f"{path}:1"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"prompt": "a"', "is not JSON"),
        ({"prompt": "a", "completion": "b"}, "is no example; its keys are 'prompt', 'completion'"),
        ({"prompt": "a", "response": None}, "has null under 'response' where a text belongs"),
        ({"messages": "a"}, "has a value of type str under 'messages', not a list"),
        ({"messages": ["a"]}, "has a value of type str in messages[0], not an object"),
        ({"messages": [{"role": "user"}]}, "has no key 'content' in messages[0]; it has 'role'"),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "has a value of type int under 'content' in messages[0] where",
        ),
        ({"messages": [{"role": "user", "content": "a"}]}, "has no turn of the assistant, only of user"),
        ({"messages": []}, "has no turn of the assistant, only of nobody"),
        ({"prompt": "\ud800", "response": "b"}, "has half of a surrogate pair under 'prompt'"),
    ],
)
def test_read_conversations_wrong_line_names_it(tmp_path: Path, line: object, found: str) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(DataError) as caught:
        read_lines(path, {"prompt": "a", "response": "b"}, line)
    assert f"{path}:2 {found}" in str(caught.value)


def test_read_conversations_missing_or_empty_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no\.jsonl does not exist"):
        list(read_conversations(tmp_path / "no.jsonl"))
    with pytest.raises(DataError, match=r"a\.jsonl has no examples"):
        read_lines(tmp_path / "a.jsonl", "")


def test_encode_sft_without_template_learns_response_and_end(tmp_path: Path) -> None:
    examples = encoded(("ab", "cd"))
    assert examples[0].tokens.tolist() == [*b"abcd", EOD]
    assert examples[0].is_learned.tolist() == [False, False, True, True, True]


def test_encode_sft_cuts_at_the_end_and_counts(tmp_path: Path) -> None:
    # With 4 inputs, the fifth token is a label still.
    examples = encoded(("ab", "cd"), ("ab", "cde"), ("abcd", "e"), ("abcde", "f"), ("", "a"), seq_length=4)
    assert [examples[number].tokens.tolist() for number in range(3)] == [[*b"abcd", EOD], [*b"abcde"], [*b"abcde"]]
    assert (len(examples), examples.num_cut) == (3, 2)
    assert examples.left_out.reasons == {
        "without a token of a response in the first 5": 1,
        "with an empty prompt": 1,
    }


def test_encode_sft_with_nothing_left_is_an_error() -> None:
    with pytest.raises(DataError, match="no example is left: 1 example left out: 1 with an empty response; the first"):
        encoded(("ab", ""))


def test_encode_sft_turns_without_a_template_are_an_error() -> None:
    with pytest.raises(DataError, match=r"a\.jsonl:1 has turns, and the tokenizer has no chat template"):
        encode_sft([talk(("user", "a"), ("assistant", "b"))], BYTES, None, 16)


def test_encode_sft_without_an_end_of_document_is_an_error() -> None:
    tokenizer = build_tokenizer(Flags("NullTokenizer"), vocab_size=9)
    assert tokenizer.eod_id is None
    with pytest.raises(ConfigError, match="no end-of-document token, and no chat template"):
        encode_sft([ask("1", "2")], tokenizer, None, 16)


def test_encode_sft_with_template_ends_with_the_last_learned_token(tmp_path: Path) -> None:
    tokenizer, chat, _ = load(save_tokenizer(tmp_path))
    turns = talk(("user", "the fox"), ("assistant", "jumps"), ("user", "what was that?"))
    examples = encode_sft([turns, ask("<|im_start|>", "a", "a.jsonl:2")], tokenizer, chat, 64)
    assert tokenizer.decode(examples[0].tokens.tolist()).endswith("jumps<|im_end|>")
    assert examples.left_out.first == "a.jsonl:2"


def test_pack_fills_sequences_and_is_always_the_same() -> None:
    assert pack([5, 3, 8, 2, 6, 8], 8) == [(2,), (5,), (3, 4), (0, 1)]
    lengths = (np.random.default_rng(0).integers(1, 33, 500)).tolist()
    packed = pack(lengths, 64)
    assert packed == pack(lengths, 64)
    assert sorted(number for sequence in packed for number in sequence) == list(range(500))
    assert all(sum(lengths[number] for number in sequence) <= 64 for sequence in packed)
    # No fewer sequences could hold them.
    assert len(packed) == -(-sum(lengths) // 64)


def test_sft_sequences_packed_have_the_labels_of_the_unpacked() -> None:
    generator = np.random.default_rng(1)
    pairs = [("x" * int(a), "y" * int(b)) for a, b in generator.integers(1, 12, (40, 2))]
    examples = encoded(*pairs)
    alone, packed = sequences(examples, packing=False), sequences(examples, packing=True)
    assert (len(alone), len(packed) < 35) == (40, True)
    seen = []
    for number in range(len(packed)):
        sample = packed[number]
        assert sample.document_ids is not None
        for document, example in enumerate(packed.examples_of(number)):
            own = sample.document_ids == document
            count = int(own.sum())
            # One run, wherever the document stands.
            assert np.flatnonzero(own).tolist() == list(range(own.argmax(), own.argmax() + count))
            expected = alone[example]
            assert sample.tokens[own].tolist() == expected.tokens[:count].tolist()
            assert sample.labels[own].tolist() == expected.labels[:count].tolist()
            assert sample.loss_mask[own].tolist() == expected.loss_mask[:count].tolist()
            assert expected.loss_mask[count:].sum() == 0
            seen.append(example)
        padding = sample.document_ids == len(packed.examples_of(number))
        assert (sample.tokens[padding] == PAD).all() and (sample.labels[padding] == PAD).all()
        assert sample.loss_mask[padding].sum() == 0
        assert sample.document_ids.max() <= len(packed.examples_of(number))
    assert sorted(seen) == list(range(40))
    learned = [sum(each[number].loss_mask.sum() for number in range(len(each))) for each in (alone, packed)]
    # Every token of a response, and its end.
    assert learned == [examples.is_learned.sum()] * 2


def test_sft_sequences_shift_labels_within_an_example() -> None:
    packed = sequences(encoded(("ab", "cd"), ("e", "f")), packing=True, seq_length=8)
    assert len(packed) == 1
    sample = packed[0]
    assert sample.tokens.tolist() == [*b"abcd", *b"ef", PAD, PAD]
    assert sample.labels.tolist() == [*b"bcd", EOD, *b"f", EOD, PAD, PAD]
    assert sample.loss_mask.tolist() == [0, 1, 1, 1, 1, 1, 0, 0]
    assert sample.document_ids is not None
    assert sample.document_ids.tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert sample.as_filling().loss_mask.tolist() == [0] * 8


@pytest.mark.parametrize("packing", [True, False])
def test_make_sft_batch_has_document_ids_when_packed(packing: bool) -> None:
    sequences_of = sequences(encoded(("ab", "cd"), ("e", "f" * 14)), packing=packing)
    batch = make_sft_batch([sequences_of[0], sequences_of[1]], vocab_size=BYTES.vocab_size)
    assert batch.tokens.shape == batch.labels.shape == batch.loss_mask.shape == (2, 16)
    assert (batch.document_ids is not None) == packing
    assert [str(each.dtype) for each in (batch.tokens, batch.labels, batch.loss_mask)] == [
        "torch.int64",
        "torch.int64",
        "torch.float32",
    ]
    if batch.document_ids is not None:
        assert str(batch.document_ids.dtype) == "torch.int32"


def test_make_sft_batch_refuses_labels_outside_of_the_vocabulary() -> None:
    assert EOD is not None
    sample = sequences(encoded(("ab", "cd"), seq_length=4), packing=False, seq_length=4)[0]
    assert sample.labels.max() == EOD > sample.tokens.max()
    with pytest.raises(DataError, match=f"the data has token id {EOD}, outside of the vocabulary of {EOD} ids"):
        make_sft_batch([sample], vocab_size=EOD)
