"""A run whose every value is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from megatron_ds.config.blocks import RunConfig
from megatron_ds.config.settings import Given

_TOKENIZER = "derived: the tokenizer"


@dataclass(frozen=True)
class ResolvedRun:
    """A run whose every value is known, with the place it came from.

    Attributes:
        run: the options.
        deepspeed: the config that DeepSpeed gets; empty while there are problems.
        origins: where each option's value came from, by path: ``--lr``, ``my_ds.json: megatron_ds.optimizer.lr``,
            ``my_ds.json: optimizer.params.lr``, ``preset gpt2_125m``, ``default`` or ``derived: …``.
        print_config: True when the run is to be printed, not started.
        notes: what the user should know: files that were taken by name, what filled each ``"auto"``, and options that
            have no effect.
    """

    run: RunConfig
    deepspeed: dict[str, Any]
    origins: dict[str, str]
    print_config: bool = False
    notes: tuple[str, ...] = ()

    def with_vocab_size(self, vocab_size: int) -> ResolvedRun:
        """A copy in which the tokenizer has filled the vocabulary size.

        Args:
            vocab_size: number of token ids in use, added tokens included.
        """
        return self.with_values({"model.vocab_size": Given(vocab_size, _TOKENIZER)})

    def with_eod_id(self, eod_id: int) -> ResolvedRun:
        """A copy in which the tokenizer has filled the id that ends a document.

        Args:
            eod_id: the id.
        """
        return self.with_values({"data.eod_id": Given(eod_id, _TOKENIZER)})

    def with_schedule(self, options: Mapping[str, Any], origin: str) -> ResolvedRun:
        """A copy with another learning-rate schedule.

        Args:
            options: the optimizer's options that make it.
            origin: where they came from.
        """
        return self.with_values({f"optimizer.{name}": Given(value, origin) for name, value in options.items()})

    def with_values(self, values: Mapping[str, Given]) -> ResolvedRun:
        """A copy with other values of some options.

        Args:
            values: by path.
        """
        run, origins = self.run, dict(self.origins)
        for path, given in values.items():
            block, name = path.split(".")
            changed = getattr(run, block).model_copy(update={name: given.value})
            run = run.model_copy(update={block: changed})
            origins[path] = given.origin
        return replace(self, run=run, origins=origins)


@dataclass(frozen=True)
class Draft:
    """What is known of a run that has problems.

    Attributes:
        values: every option's value with its origin, by path; "missing or wrong" where a required one has none.
        print_config: True when the run was to be printed, not started.
        notes: as those of `ResolvedRun`.
        failed: options whose given value is wrong, by path.
    """

    values: dict[str, Given]
    print_config: bool
    notes: tuple[str, ...]
    failed: frozenset[str]
