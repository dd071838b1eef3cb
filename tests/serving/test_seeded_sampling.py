"""Sampling by seed: what is proved of the draws themselves, and of the embedded engine.

A real tiny model with real PEFT adapters, random weights; nothing is faked.
"""

import asyncio

import pytest
import torch
from engine_calls import ask, load, said
from scipy import stats

from serving.seeded_sampling import seeded_sampling

# PEFT 0.21 reads a property that transformers 5.24 renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")


def drawn(logits_V: torch.Tensor, draws: int, temperature: float, top_p: float | None):
    processors = seeded_sampling(range(draws), temperature, top_p)
    scores_B_V = processors(torch.zeros(draws, 1, dtype=torch.long), logits_V.expand(draws, -1))
    return torch.bincount(scores_B_V.argmax(-1), minlength=len(logits_V)).numpy()


def test_the_draws_have_the_distribution_of_the_logits() -> None:
    logits_V = torch.tensor([2.0, 1.0, 0.0, -1.0])
    counts_V = drawn(logits_V, 4000, temperature=2.0, top_p=None)
    expected_V = 4000 * torch.softmax(logits_V / 2.0, -1).numpy()
    assert stats.chisquare(counts_V, expected_V, sum_check=False).pvalue > 0.001


def test_the_nucleus_leaves_the_tail_out() -> None:
    logits_V = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    counts_V = drawn(logits_V, 1000, temperature=1.0, top_p=0.7)
    assert (counts_V > 0).tolist() == [True, True, False, False]


def test_an_answer_with_a_seed_is_the_same_alone_and_in_a_batch(engine, adapters) -> None:
    name = next(iter(adapters))
    requests = [ask(name, "Hi", seed=seed, temperature=1.0, max_tokens=16) for seed in range(6)]
    requests += [ask(name, "A much longer text than the others.", seed=0, temperature=1.0)]

    async def run():
        await load(engine, adapters)
        together = await asyncio.gather(*[engine.chat(request) for request in requests])
        return together, [await engine.chat(request) for request in requests]

    together, alone = asyncio.run(run())
    assert [said(a) for a in together] == [said(a) for a in alone]
    assert len({said(a) for a in together}) == len(requests)


def test_requests_without_a_seed_are_answered_in_several_ways(engine) -> None:
    async def run():
        ways = [ask(temperature=1.0, max_tokens=16) for _ in range(4)]
        return await asyncio.gather(*[engine.chat(request) for request in ways])

    assert len({said(answer) for answer in asyncio.run(run())}) > 1
