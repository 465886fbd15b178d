from __future__ import annotations

import pytest

from megatron_ds.config.partition import counted_layers, even_counts, matching_classes, stage_bounds


@pytest.mark.parametrize(
    ("method", "counts"),
    [("layers:3,5", [3, 5]), ("LAYERS: 0, 4", [0, 4]), ("layers:7", [7]), ("uniform", None), ("type:layers:", None)],
)
def test_counted_layers_are_read(method, counts):
    assert counted_layers(method) == counts


@pytest.mark.parametrize("words", ["", "1,", "1,x", "1,-1", "1.5,2", "²", "1" * 10])
def test_counted_layers_that_are_no_whole_numbers_are_refused(words):
    with pytest.raises(ValueError, match="whole numbers"):
        counted_layers(f"layers:{words}")


# Two layers of embeddings, four transformer layers, a norm and a head.
LAYERS = [False, False, True, True, True, True, False, False]


@pytest.mark.parametrize(
    ("counts", "bounds"),
    [
        ([4], [0, 8]),
        ([1, 3], [0, 3, 8]),
        ([3, 1], [0, 5, 8]),
        ([0, 4], [0, 2, 8]),
        ([4, 0], [0, 6, 8]),
        ([0, 2, 2, 0], [0, 2, 4, 6, 8]),
    ],
)
def test_stage_bounds_put_embeddings_first_and_the_head_last(counts, bounds):
    assert stage_bounds(LAYERS, counts) == bounds


def test_even_counts_differ_by_one_at_most():
    assert even_counts(7, 3) == [3, 2, 2]


@pytest.mark.parametrize(("layers", "counts"), [(3, [1, 1, 1, 0]), (2, [0, 1, 1, 0])])
def test_even_counts_of_few_layers_leave_out_the_outer_stages(layers, counts):
    assert even_counts(layers, 4) == counts


@pytest.mark.parametrize(
    ("pattern", "found"),
    [("transformer", ["ParallelTransformerLayer"]), ("EMBED|head", ["Embedding", "Head"]), ("mlp", [])],
)
def test_matching_classes_are_found_in_any_case(pattern, found):
    assert matching_classes(pattern, ["Embedding", "ParallelTransformerLayer", "Head"]) == found
