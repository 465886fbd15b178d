"""Flex attention's tiles and masks, and the operation without a kernel. Its kernels are tested in tests/gpu."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from megatron_ds.models.flex import FlexAttention, block_mask

CPU = torch.device("cpu")
SLOPES = torch.tensor([0.5, 0.25, 0.1, 0.01])


def documents(sequence: int, most: int | None) -> Tensor | None:
    if most is None:
        return None
    return torch.randint(0, most, (2, sequence), generator=torch.Generator().manual_seed(1)).sort(1).values.int()


def written_out(sequence: int, window_size: int | None, ids: Tensor | None) -> Tensor:
    """Which tokens a token attends to, ``[B, 1, S, S]``, by its definition."""
    places = torch.arange(sequence)
    distance = places[:, None] - places
    counts = (distance >= 0) & (distance < (window_size or sequence))
    return counts[None, None] if ids is None else (counts & (ids[:, :, None] == ids[:, None, :])).unsqueeze(1)


@pytest.mark.parametrize("sequence", [77, 128, 300, 512])
@pytest.mark.parametrize("window_size", [None, 1, 50, 128, 200, 1000])
@pytest.mark.parametrize("most", [None, 1, 3, 40])
def test_tiles_are_those_of_the_written_out_mask(sequence: int, window_size: int | None, most: int | None) -> None:
    ids = documents(sequence, most)
    ours = block_mask(sequence, CPU, window_size, ids)
    assert ours.mask_mod is not None
    theirs = create_block_mask(ours.mask_mod, None if ids is None else 2, None, sequence, sequence, device="cpu")
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks"):
        counts = getattr(theirs, name)
        # A tile without a mask of its own is one in which every token counts.
        assert torch.equal(getattr(ours, name).expand_as(counts), counts), name


@pytest.mark.parametrize("sequence", [77, 128, 300, 512])
@pytest.mark.parametrize("lengths", [(0, 5), (128, 300), (200, 77)])
@pytest.mark.parametrize("slopes", [None, SLOPES], ids=["plain", "alibi"])
def test_prefix_is_seen_by_all_tokens(sequence: int, lengths: tuple[int, int], slopes: Tensor | None) -> None:
    places = torch.arange(sequence)
    ids = (places >= torch.tensor(lengths)[:, None]).int()
    ours = block_mask(sequence, CPU, prefix_ids=ids)
    assert ours.mask_mod is not None
    theirs = create_block_mask(ours.mask_mod, 2, None, sequence, sequence, device="cpu")
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    assert torch.equal(ours.full_kv_num_blocks, theirs.full_kv_num_blocks)
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, sequence, 16).unbind(0)
    counts = ((places[:, None] >= places) | (ids == 0)[:, None, :]).unsqueeze(1)
    bias = torch.zeros(4, sequence, sequence)
    if slopes is not None:
        bias = -slopes[:, None, None] * (places[:, None] - places).abs()
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=bias.masked_fill(~counts, -torch.inf))
    found = FlexAttention(None, slopes, has_prefix=True, compiled=False)(query, key, value, ids)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("slopes", [None, SLOPES], ids=["plain", "alibi"])
@pytest.mark.parametrize(("window_size", "most"), [(None, None), (50, None), (None, 3), (150, 40)])
def test_flex_attention_equals_sdpa_with_the_mask(
    slopes: Tensor | None, window_size: int | None, most: int | None
) -> None:
    sequence, ids = 300, documents(300, most)
    torch.manual_seed(0)
    query = torch.randn(2, 4, sequence, 16)
    key, value = torch.randn(2, 2, 2, sequence, 16).unbind(0)
    places = torch.arange(sequence)
    bias = torch.zeros(4, sequence, sequence)
    if slopes is not None:
        bias = -slopes[:, None, None] * (places[:, None] - places)
    mask = bias.masked_fill(~written_out(sequence, window_size, ids), -torch.inf)
    expected = F.scaled_dot_product_attention(
        query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), attn_mask=mask
    )
    attend = FlexAttention(window_size, slopes, compiled=False)
    torch.testing.assert_close(attend(query, key, value, ids), expected, rtol=1e-5, atol=1e-5)
    # The second call takes the tiles that are known, another sample's are its own.
    other = None if ids is None else torch.zeros_like(ids)
    assert torch.equal(attend(query, key, value, ids), attend(query, key, value, ids))
    if other is not None:
        assert not torch.allclose(attend(query, key, value, other), expected)
