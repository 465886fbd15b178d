"""How layers are dealt to pipeline stages, as far as it is known before the start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

_PREFIX = "layers:"

_COMMON = (
    "VocabParallelEmbedding",
    "PositionEmbedding",
    "EmbeddingDropout",
    "ParallelTransformerLayer",
    "LayerNorm",
    "RMSNorm",
)
# The classes of a model's layers by its family, whatever its options: a pattern that none of them has is refused before
# the start.
LAYER_CLASSES: Mapping[str, tuple[str, ...]] = {
    "gpt": (*_COMMON, "LanguageModelHead"),
    "bert": (*_COMMON, "TokenTypeEmbedding", "Pooler", "BinaryHead", "MaskedLmHead", "ClassificationHead"),
}


def counted_layers(method: str) -> list[int] | None:
    """Transformer layers of each stage.

    Args:
        method: a value of ``pp_partition_method``.

    Returns:
        The numbers, or None when `method` doesn't count layers out.

    Raises:
        ValueError: what stands after ``layers:`` is no list of whole numbers.
    """
    if not method.lower().startswith(_PREFIX):
        return None
    words = [word.strip() for word in method[len(_PREFIX) :].split(",")]
    # The length keeps out what Python refuses to read as a number.
    if not all(word.isascii() and word.isdigit() and len(word) <= 9 for word in words):
        raise ValueError("whole numbers with commas between them")
    return [int(word) for word in words]


def stage_bounds(is_transformer_layer: Sequence[bool], counts: Sequence[int]) -> list[int]:
    """Where stages begin in a model's list of layers, and the end of the last one.

    What stands before the transformer layers goes to the first stage, what stands after them to the last one.

    Args:
        is_transformer_layer: for each layer of the list.
        counts: transformer layers of each stage, as many as there are.
    """
    places = [index for index, is_one in enumerate(is_transformer_layer) if is_one]
    assert sum(counts) == len(places), "the configuration was checked before launch"
    before = [sum(counts[:stage]) for stage in range(1, len(counts))]
    inner = [places[count] if count < len(places) else places[-1] + 1 for count in before]
    return [0, *inner, len(is_transformer_layer)]


def even_counts(layers: int, stages: int) -> list[int]:
    """Numbers of layers that differ by one at most, the larger ones first: what advice is made of.

    With fewer layers than stages the last stage goes without, and then the first: the others can't.
    """
    if layers == stages - 2:
        return [0, *[1] * layers, 0]
    return [layers // stages + (stage < layers % stages) for stage in range(stages)]


def matching_classes(pattern: str, classes: Iterable[str]) -> list[str]:
    """Those of `classes` that ``type:PATTERN`` finds.

    DeepSpeed lower-cases the pattern and looks for it anywhere, whatever the case.

    Args:
        pattern: a regular expression.
        classes: names of layers' classes.

    Raises:
        re.error: the pattern is none.
    """
    return [name for name in classes if re.search(pattern.lower(), name, re.IGNORECASE)]
