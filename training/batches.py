"""Batches that compute a shared prompt once.

In: rows of a slot. Out: tensors for a causal language model. The rows of a slot begin
alike (the same system prompt, the same tools), so a batch is laid out as a prefix tree in
one sequence: each distinct prompt token stands once, has its own position and sees only its
ancestors. Loss and gradient are those of separate rows; what is saved is padding and
repeated work (measured in training/LOG.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.render import IGNORED, Row

ATTENTION_OVER_LINEAR = 1 / 3000
"""Cost of one visible token, in units of a token's passage through the linear layers.

For SmolLM2-135M: 4 x 576 x 30 multiply-adds of attention against 2 x 106 million.
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """Rows laid out as one sequence of T tokens; children follow their parents."""

    input_ids_T: np.ndarray
    positions_T: np.ndarray
    labels_T: np.ndarray
    """The token at this place if it is to be learnt (from its predecessor), else `IGNORED`."""
    weights_T: np.ndarray
    sees_T_T: np.ndarray
    """Whether a token attends to another: to itself and its ancestors."""


def lay_out(rows: Sequence[Row]) -> Tree:
    """Lay rows out as a prefix tree in depth-first order.

    Sorting by tokens puts rows with a common prefix next to each other, so each row only
    adds what follows its prefix in common with the row before. The last prompt token and
    what comes after it are never shared: each row predicts its own completion.
    """
    rows = sorted(rows, key=lambda r: (r.input_ids, r.example_id))
    total = sum(len(r.input_ids) for r in rows)
    sees = np.zeros((total, total), dtype=bool)
    tokens: list[int] = []
    positions: list[int] = []
    labels: list[int] = []
    weights: list[float] = []
    path: list[int] = []
    previous: Row | None = None
    for row in rows:
        shared = _shared_tokens(previous, row)
        new = len(row.input_ids) - shared
        path = path[:shared] + list(range(len(tokens), len(tokens) + new))
        sees[np.ix_(path[shared:], path)] = np.tri(new, len(path), shared, dtype=bool)
        tokens += row.input_ids[shared:]
        positions += range(shared, len(row.input_ids))
        labels += row.labels[shared:]
        weights += [row.weight] * new
        previous = row
    count = len(tokens)
    return Tree(
        input_ids_T=np.array(tokens, dtype=np.int64),
        positions_T=np.array(positions, dtype=np.int64),
        labels_T=np.array(labels, dtype=np.int64),
        weights_T=np.array(weights, dtype=np.float32),
        sees_T_T=sees[:count, :count],
    )


def plan(rows: Sequence[Row]) -> list[Tree]:
    """Return the cheaper of one tree of all rows and one tree (a plain sequence) a row.

    Rows that share little and are long would pay more for attention across a long tree
    than for padding.
    """
    together = lay_out(rows)
    longest = max(len(r.input_ids) for r in rows)
    return (
        [together]
        if _cost(1, len(together.input_ids_T)) <= _cost(len(rows), longest)
        else [lay_out([row]) for row in rows]
    )


def collate(rows: Sequence[Row], pad_token_id: int) -> dict[str, Any]:
    """Return the tensors of a batch, laid out in the cheapest way."""
    return stack(plan(rows), pad_token_id)


def stack(trees: Sequence[Tree], pad_token_id: int) -> dict[str, Any]:
    """Return the tensors of a batch: what the model takes, and what the loss takes.

    Padding is on the left, so that the learnt places of all sequences lie together at the
    end, and each pad token sees itself alone (attention over nothing is not a number).
    """
    import torch

    length = max(len(tree.input_ids_T) for tree in trees)
    size = (len(trees), length)
    input_ids_B_T = np.full(size, pad_token_id, dtype=np.int64)
    positions_B_T = np.zeros(size, dtype=np.int64)
    labels_B_T = np.full(size, IGNORED, dtype=np.int64)
    weights_B_T = np.zeros(size, dtype=np.float32)
    sees_B_T_T = np.tile(np.eye(length, dtype=bool), (len(trees), 1, 1))
    for b, tree in enumerate(trees):
        start = length - len(tree.input_ids_T)
        input_ids_B_T[b, start:] = tree.input_ids_T
        positions_B_T[b, start:] = tree.positions_T
        labels_B_T[b, start:] = tree.labels_T
        weights_B_T[b, start:] = tree.weights_T
        sees_B_T_T[b, start:, start:] = tree.sees_T_T
    return {
        "input_ids": torch.from_numpy(input_ids_B_T),
        "position_ids": torch.from_numpy(positions_B_T),
        "attention_mask": torch.from_numpy(sees_B_T_T[:, None]),
        "labels": torch.from_numpy(labels_B_T),
        "weights": torch.from_numpy(weights_B_T),
    }


def _shared_tokens(previous: Row | None, row: Row) -> int:
    if previous is None:
        return 0
    most = min(previous.prompt_tokens, row.prompt_tokens) - 1
    for i in range(most):
        if previous.input_ids[i] != row.input_ids[i]:
            return i
    return max(most, 0)


def _cost(sequences: int, length: int) -> float:
    return sequences * length * (1 + length * ATTENTION_OVER_LINEAR)
