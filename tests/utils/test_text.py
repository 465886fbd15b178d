from __future__ import annotations

import pytest

from megatron_ds.utils.text import counted, has_bytes, quoted, value_text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [((1, "layer"), "1 layer"), ((0, "layer"), "0 layers"), ((2, "process", "processes"), "2 processes")],
)
def test_counted_noun_has_its_plural(arguments, text):
    assert counted(*arguments) == text


@pytest.mark.parametrize(
    ("value", "text", "in_quotes"),
    [
        (True, "true", "true"),
        (None, "null", "null"),
        ("a b", "a b", "'a b'"),
        (1e-05, "1e-05", "1e-05"),
        (["ä", False], '["ä", false]', '["ä", false]'),
        ({"a": None}, '{"a": null}', '{"a": null}'),
    ],
)
def test_value_is_written_as_a_json_spells_it(value, text, in_quotes):
    assert (value_text(value), quoted(value)) == (text, in_quotes)


def test_has_bytes_is_false_for_half_of_a_surrogate_pair():
    assert has_bytes("a\N{GRINNING FACE}")
    assert not has_bytes("a\ud83d")
