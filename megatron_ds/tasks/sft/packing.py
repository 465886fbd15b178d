"""Which examples share a sequence."""

from __future__ import annotations

from collections.abc import Sequence


def pack(lengths: Sequence[int], room: int) -> list[tuple[int, ...]]:
    """Puts examples into sequences: the longest first, each into the sequence where the least room is left.

    The same lengths always give the same sequences. Examples of equal length come in their order.

    Args:
        lengths: of each example, from 1 to `room`.
        room: of a sequence.

    Returns:
        The examples of each sequence, in order of their numbers.
    """
    sequences: list[list[int]] = []
    # Sequences by the room that is left in them; and a bit for each room that some sequence has.
    with_room: list[list[int]] = [[] for _ in range(room + 1)]
    rooms = 0
    for example in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = lengths[example]
        assert 1 <= length <= room, "examples are cut to fit"
        enough = rooms >> length
        if enough:
            # The lowest bit.
            left = length + (enough & -enough).bit_length() - 1
            sequence = with_room[left].pop()
            if not with_room[left]:
                rooms &= ~(1 << left)
        else:
            left, sequence = room, len(sequences)
            sequences.append([])
        sequences[sequence].append(example)
        with_room[left - length].append(sequence)
        rooms |= 1 << (left - length)
    return [tuple(sorted(sequence)) for sequence in sequences]
