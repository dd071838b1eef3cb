"""Sampling by the seed of each request alone: rows of one batch do not share their chance.

The Gumbel-max trick: noise from a row's own generator is added to its log-probabilities, and the
greatest of the sums is a draw from the distribution. So an answer does not depend on what else
is in the batch, up to rounding, and requests with different seeds can be answered together.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, TemperatureLogitsWarper
from transformers.generation.logits_process import TopPLogitsWarper


class SeededGumbel(LogitsProcessor):  # type: ignore[misc, unused-ignore]
    """Adds Gumbel noise to the log-probabilities of a batch, each row's from its own seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return scores (B, V) whose greatest value in each row is a draw."""
        # Drawn on the CPU, so that the same seed means the same on any device.
        noise_B_V = torch.stack(
            [
                torch.empty(scores.shape[-1]).exponential_(generator=generator)
                for generator in self._generators
            ]
        ).to(scores.device)
        return torch.log_softmax(scores.float(), -1) - noise_B_V.clamp_min(1e-30).log()


def seeded_sampling(
    seeds: Sequence[int], temperature: float, top_p: float | None
) -> LogitsProcessorList:
    """Return what makes greedy decoding draw: temperature, nucleus, then each row's noise."""
    processors = LogitsProcessorList([TemperatureLogitsWarper(float(temperature))])
    if top_p and top_p < 1.0:
        processors.append(TopPLogitsWarper(float(top_p)))
    processors.append(SeededGumbel(seeds))
    return processors
