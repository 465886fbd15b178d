"""Which documents are training, validation and test data, whichever options say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from megatron_ds.data.data_path import SPLITS, BlendPart, parse_data_path, parse_split, parse_weighted_split
from megatron_ds.errors import ConfigError, MegatronDsError, Problem, Source

if TYPE_CHECKING:
    from megatron_ds.config.blocks import DataConfig

_Item = TypeVar("_Item")

# Name of the only set of a split.
WHOLE_SPLIT = "all"


@dataclass(frozen=True)
class Blend:
    """One training, validation or test set.

    Attributes:
        split: "train", "valid" or "test".
        name: as it is logged: the user's, or ``all``.
        parts: what it draws from.
        flag: the option that names it.
        may_be_missing: whether a run goes on without it when it has less than one sample: the test documents that
            ``--split`` sets aside.
    """

    split: str
    name: str
    parts: tuple[BlendPart, ...]
    flag: str
    may_be_missing: bool = False

    def __str__(self) -> str:
        return self.split if self.name == WHOLE_SPLIT else f"{self.split} {self.name}"


def parse_sources(data: DataConfig) -> tuple[Blend, ...]:
    """The sets of a run: one of training, then those of validation, then those of test.

    Args:
        data: the data options.

    Raises:
        ConfigError: an option is malformed, two say the same thing, there is no training data, two sets have one name,
            or training documents are used for evaluation as well. Names everything that is wrong.
    """
    problems: list[Problem] = []
    blends: list[Blend] = []
    own = {split: _own_options(data, split) for split in SPLITS}
    both = [flag for options in own.values() for flag in options]
    if data.data_path and both:
        sources = tuple(_source(flag, words) for options in own.values() for flag, words in options.items())
        problems.append(
            Problem(
                f"--data-path and {both[0]} are both given: --data-path is cut into all three splits by --split",
                (_source("--data-path", data.data_path), *sources),
                "give --data-path and --split, or options of their own for all splits that are needed",
            )
        )
    elif data.data_path or not both:
        blends += _collect(problems, partial(_cut_by_split, data))
    else:
        for split in SPLITS:
            blends += _collect(problems, partial(_own_blends, split, own[split]))
        if not own["train"]:
            problems.append(Problem(f"{both[0]} is given, and no training data", advice="give --train-data-path"))
    problems += _repeated_names(blends) + _unfit_parts(blends)
    if problems:
        # The same prefix twice shows in each split that it is cut into.
        raise ConfigError(list(dict.fromkeys(problems)))
    return tuple(blends)


def _collect(problems: list[Problem], parse: Callable[[], Sequence[_Item]]) -> Sequence[_Item]:
    """What `parse` returns; nothing where it fails, and its problems are added."""
    try:
        return parse()
    except MegatronDsError as error:
        problems += error.problems
        return ()


def _own_options(data: DataConfig, split: str) -> dict[str, list[str]]:
    options = {
        f"--{split}-{kind.replace('_', '-')}": getattr(data, f"{split}_{kind}")
        for kind in ("data_path", "weighted_split_paths")
    }
    return {flag: words for flag, words in options.items() if words}


def _source(flag: str, words: Sequence[str]) -> Source:
    return Source(flag.lstrip("-").replace("-", "_"), " ".join(words), flag)


def _cut_by_split(data: DataConfig) -> list[Blend]:
    problems: list[Problem] = []
    parts = _collect(problems, partial(parse_data_path, data.data_path))
    shares = _collect(problems, partial(parse_split, data.split))
    if problems:
        raise ConfigError(problems)
    blends = []
    for number, split in enumerate(SPLITS):
        start, end = (sum(shares[:count]) / sum(shares) for count in (number, number + 1))
        # Training without a share is reported where its documents are counted.
        if shares[number] or split == "train":
            cut = tuple(replace(part, start=start, end=end) for part in parts)
            blends.append(Blend(split, WHOLE_SPLIT, cut, "--data-path", may_be_missing=split == "test"))
    return blends


def _own_blends(split: str, options: dict[str, list[str]]) -> list[Blend]:
    if len(options) == 2:
        first, second = options
        raise ConfigError(
            Problem(
                f"{first} and {second} are both given",
                tuple(_source(flag, words) for flag, words in options.items()),
                "keep one of them",
            )
        )
    for flag, words in options.items():
        if flag.endswith("data-path"):
            return [Blend(split, WHOLE_SPLIT, parse_data_path(words, flag), flag)]
        named = [parse_weighted_split(text, flag) for text in words]
        if split == "train" and len(named) > 1:
            raise ConfigError(
                Problem(
                    f"{flag} has {len(named)} sets; there is one set of training data",
                    (_source(flag, words),),
                    "put all parts into one text, separated by commas",
                )
            )
        return [Blend(split, name, parts, flag) for name, parts in named]
    return []


def _repeated_names(blends: Sequence[Blend]) -> list[Problem]:
    return [
        Problem(
            f"{later.flag} has two sets named {later.name!r}",
            advice="each set is logged under its name: give them different ones",
        )
        for earlier, later in combinations(blends, 2)
        if (earlier.split, earlier.name) == (later.split, later.name)
    ]


def _unfit_parts(blends: Sequence[Blend]) -> list[Problem]:
    """Parts of next to no weight; documents that are trained on and evaluated on, or twice in one blend."""
    problems = []
    for blend in blends:
        total = sum(part.weight for part in blend.parts)
        problems += [
            Problem(f"{part.prefix} has less than 1e-12 of the weights of {blend.flag}", advice="leave it out")
            for part in blend.parts
            if part.weight / total < Fraction(1, 10**12)
        ]
        for first, second in combinations(blend.parts, 2):
            if _overlap(first, second):
                message = f"{second.prefix} is given more than once in {blend.flag}; add up its weights"
                ranges = blend.flag.endswith("weighted-split-paths")
                advice = "or give ranges of documents that do not overlap" if ranges else ""
                problems.append(Problem(message, advice=advice))
    train = [(blend, part) for blend in blends if blend.split == "train" for part in blend.parts]
    others = [(blend, part) for blend in blends if blend.split != "train" for part in blend.parts]
    for blend, part in train:
        for other, other_part in others:
            if _overlap(part, other_part):
                problems.append(
                    Problem(
                        f"documents of {part.prefix} are both training and {other.split} data: shares "
                        f"{part.start:g}:{part.end:g} of {blend.flag}, {other_part.start:g}:{other_part.end:g} of "
                        f"{other.flag}",
                        advice="cut one set with --data-path and --split, or give ranges that do not overlap with "
                        "--train-weighted-split-paths and --valid-weighted-split-paths",
                    )
                )
    return problems


def _overlap(first: BlendPart, second: BlendPart) -> bool:
    return first.start < second.end and second.start < first.end and _same_files(first.prefix, second.prefix)


def _same_files(first: str, second: str) -> bool:
    """Whether two prefixes are one pair of files, linked ones included."""
    paths = [Path(f"{prefix}.bin") for prefix in (first, second)]
    try:
        return paths[0].samefile(paths[1])
    except OSError:  # one is missing, which is another problem
        return paths[0].resolve() == paths[1].resolve()
