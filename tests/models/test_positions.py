"""Rotary embeddings, ALiBi and windows against Hugging Face's functions, values by hand, and loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from megatron_ds.config.blocks import ModelConfig
from megatron_ds.models import SequentialModel, gpt_layers, initialize_weights
from megatron_ds.models.attention import AttentionScheme
from megatron_ds.models.positions import alibi_slopes, rotary_frequencies, rotate
from megatron_ds.mpu import ModelParallelUnit, Topology
from tests.models.tiny import tiny_model


def _angles(config: ModelConfig, sequence: int) -> tuple[Tensor, Tensor]:
    query = torch.zeros(1, 4, sequence, config.head_size)
    return AttentionScheme(config, ModelParallelUnit.offline()).angles(query, None)


@pytest.mark.parametrize("heads", [1, 2, 5, 8, 112])
def test_alibi_slopes_are_those_of_bloom(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import _get_alibi_slopes

    torch.testing.assert_close(alibi_slopes(heads), _get_alibi_slopes(heads, torch.device("cpu")), rtol=1e-6, atol=0)


def test_alibi_slopes_of_eight_heads_are_those_of_the_paper() -> None:
    assert alibi_slopes(8).tolist() == [1 / 2**i for i in range(1, 9)]


def test_rotary_frequencies_by_hand() -> None:
    config = tiny_model(position_embedding_type="rope", rotary_base=16.0, rotary_percent=0.5)
    assert config.rotary_size == 4
    assert rotary_frequencies(config).tolist() == [1.0, 0.25]
    linear = config.model_copy(update={"rotary_seq_len_interpolation_factor": 4.0})
    assert rotary_frequencies(linear).tolist() == [0.25, 0.0625]


def test_llama3_scaling_by_hand() -> None:
    """P = 64 positions, a = 1, b = 4: wavelengths above 64 are stretched 8 times, those below 16 stay."""
    config = tiny_model(
        position_embedding_type="rope",
        rotary_base=10_000.0,
        use_rope_scaling=True,
        rope_original_max_positions=64,
    )
    plain = rotary_frequencies(config.model_copy(update={"use_rope_scaling": False})).tolist()
    assert plain == pytest.approx([1.0, 0.1, 0.01, 0.001])
    # Wavelengths 2 pi (stays), 62.8 (between), 628 and 6283 (stretched). The second has turned 64 x 0.1 / 2 pi times.
    kept = (6.4 / (2 * math.pi) - 1) / 3
    expected = [1.0, kept * 0.1 + (1 - kept) * 0.1 / 8, 0.01 / 8, 0.001 / 8]
    assert rotary_frequencies(config).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("percent", [1.0, 0.5])
def test_interleaved_rotation_is_that_of_gptj(percent: float) -> None:
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    config = tiny_model(position_embedding_type="rope", rotary_percent=percent)
    heads = torch.randn(2, 4, 16, 8, generator=torch.Generator().manual_seed(0))
    found = rotate(heads, _angles(config, 16), interleaved=True)
    width = config.rotary_size
    sines, cosines = create_sinusoidal_positions(16, width).split(width // 2, -1)
    theirs = apply_rotary_pos_emb(heads.transpose(1, 2)[..., :width], sines[None], cosines[None]).transpose(1, 2)
    torch.testing.assert_close(found[..., :width], theirs, rtol=0, atol=1e-6)
    assert torch.equal(found[..., width:], heads[..., width:])


def test_rotation_turns_the_halves_of_a_pair_by_the_angle_of_its_position() -> None:
    config = tiny_model(position_embedding_type="rope", hidden_size=8)  # one pair in a head
    heads = torch.tensor([3.0, 4.0]).expand(1, 4, 3, 2)
    found = rotate(heads, _angles(config, 3), interleaved=False)
    for place in range(3):
        cosine, sine = math.cos(place), math.sin(place)
        expected = [3 * cosine - 4 * sine, 4 * cosine + 3 * sine]
        assert found[0, 0, place].tolist() == pytest.approx(expected, rel=1e-6)


def test_rotation_of_a_shorter_sample_has_the_same_angles() -> None:
    scheme = AttentionScheme(tiny_model(position_embedding_type="rope"), ModelParallelUnit.offline())
    long, _ = scheme.angles(torch.zeros(1, 4, 16, 8), None)
    short, _ = scheme.angles(torch.zeros(1, 4, 5, 8), None)
    assert torch.equal(short, long[:, :, :5])


@pytest.mark.parametrize("tp_rank", [0, 1])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("alibi", [False, True])
@pytest.mark.parametrize("documents", [False, True])
def test_mask_is_that_of_a_loop(tp_rank: int, window: int | None, alibi: bool, documents: bool) -> None:
    config = tiny_model(position_embedding_type="alibi" if alibi else "rope", window_size=window)
    mpu = ModelParallelUnit.offline(Topology(tp_size=2), global_rank=tp_rank)
    scheme = AttentionScheme(config, mpu, reset_attention_mask=documents)
    ids = torch.tensor([[0, 0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 1, 1]], dtype=torch.int32)
    mask = scheme.mask(torch.zeros(2, 2, 7, 8), ids)
    if not (window or alibi or documents):
        assert mask is None
        return
    slopes = alibi_slopes(4)[2 * tp_rank :]
    for sample in range(2):
        for head in range(2):
            for query in range(7):
                for key in range(7):
                    near = key <= query and (window is None or query - key < window)
                    counts = near and (not documents or bool(ids[sample, query] == ids[sample, key]))
                    found = mask.expand(2, 2, 7, 7)[sample, head, query, key].item()
                    if not alibi:
                        assert found is counts
                    elif counts:
                        assert found == pytest.approx(-float(slopes[head]) * (query - key), rel=1e-6)
                    else:
                        assert found == -math.inf


@pytest.mark.parametrize("alibi", [False, True])
def test_mask_of_a_prefix_is_that_of_a_loop(alibi: bool) -> None:
    config = tiny_model(position_embedding_type="alibi" if alibi else "rope", prefix_lm=True)
    scheme = AttentionScheme(config, ModelParallelUnit.offline())
    ids = torch.tensor([[0, 0, 0, 1, 1], [1, 1, 1, 1, 1]], dtype=torch.int32)
    mask = scheme.mask(torch.zeros(2, 4, 5, 8), ids)
    assert mask is not None
    for sample, prefix in enumerate((3, 0)):
        for head in range(4):
            for query in range(5):
                for key in range(5):
                    counts = key <= query or key < prefix
                    found = mask.expand(2, 4, 5, 5)[sample, head, query, key].item()
                    if not alibi:
                        assert found is counts
                    elif counts:
                        assert found == pytest.approx(-abs(query - key) / 4 ** (head + 1), rel=1e-6)
                    else:
                        assert found == -math.inf


def test_prefix_sees_itself_in_both_directions_and_nothing_after_it() -> None:
    mpu = ModelParallelUnit.offline()
    model = SequentialModel(gpt_layers(tiny_model(prefix_lm=True, init_method_std=0.2), mpu))
    initialize_weights(model.named_parameters(), 1234, mpu)
    tokens = torch.randint(0, 61, (1, 16), generator=torch.Generator().manual_seed(0))
    ids = (torch.arange(16) >= 6).int().unsqueeze(0)
    before = model((tokens, ids)).detach()
    for changed, first in ((5, 0), (9, 9)):
        other = tokens.clone()
        other[0, changed] = (other[0, changed] + 1) % 61
        moved = (model((other, ids)).detach() - before).abs().amax((1, 2))
        assert float(moved[:first].sum()) == 0 or first == 0
        assert float(moved[first:].min()) > 1e-6


def test_mask_is_worked_out_once_for_all_layers_and_anew_for_another_length() -> None:
    scheme = AttentionScheme(tiny_model(position_embedding_type="alibi"), ModelParallelUnit.offline())
    first = scheme.mask(torch.zeros(1, 4, 16, 8), None)
    assert scheme.mask(torch.zeros(3, 4, 16, 8), None) is first
    half = scheme.mask(torch.zeros(1, 4, 8, 8, dtype=torch.bfloat16), None)
    assert half is not None
    assert (half.shape, half.dtype) == ((1, 4, 8, 8), torch.bfloat16)


@pytest.mark.parametrize("switches", [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("kind", ["rope", "alibi", "none"])
def test_document_among_others_has_the_scores_that_it_has_alone(kind: str, switches: tuple[bool, bool]) -> None:
    reset_positions, reset_attention = switches
    config = tiny_model(position_embedding_type=kind, normalization="RMSNorm", embed_layernorm=True)
    mpu = ModelParallelUnit.offline()

    def model(**documents: bool) -> SequentialModel:
        built = SequentialModel(gpt_layers(config, mpu, **documents))
        initialize_weights(built.named_parameters(), 1234, mpu)
        return built

    tokens = torch.randint(0, 61, (2, 16), generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[0] * 5 + [1] * 11, [0] * 9 + [1] * 7], dtype=torch.int32)
    packed = model(reset_position_ids=reset_positions, reset_attention_mask=reset_attention)((tokens, ids))
    plain = model()
    assert list(dict(plain.named_parameters())) == list(dict(model(reset_attention_mask=True).named_parameters()))
    for row, start in ((0, 5), (1, 9)):
        alone = plain(tokens[row : row + 1, start:])[:, 0]
        # Distances within a document are the same, restarted or not.
        difference = float((packed[start:, row] - alone).detach().abs().max())
        assert (difference < 1e-6) is reset_attention, difference


@pytest.mark.parametrize("kind", ["rope", "alibi", "none", "learned_absolute"])
def test_swapped_tokens_change_later_scores_but_for_a_model_without_positions(kind: str) -> None:
    mpu = ModelParallelUnit.offline()
    model = SequentialModel(
        gpt_layers(tiny_model(position_embedding_type=kind, num_layers=1, init_method_std=0.5), mpu)
    )
    initialize_weights(model.named_parameters(), 1234, mpu)
    tokens = torch.arange(1, 17).unsqueeze(0)
    swapped = tokens.clone()
    swapped[0, [2, 7]] = tokens[0, [7, 2]]
    changes = (model(tokens)[-1] - model(swapped)[-1]).detach().abs().max()
    # One layer of attention is a sum over tokens: without positions their order can't matter to the last one.
    assert (float(changes) > 1e-3) is (kind != "none")
