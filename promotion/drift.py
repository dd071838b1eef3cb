"""Whether a challenger forgot or collapsed: distance from the base, length and variety of answers.

In: prompts and what both arms answered. Out: a `Drift`, reported beside the verdict and decisive
only against a configured limit.

- Distance: the forward KL divergence KL(base || version) a token, on the slot's own held-out
  prompts, which predicts forgetting better than how far weights moved (RL's Razor,
  arXiv 2509.04259). The base answers each prompt, sampled at temperature 1 with a seed; both
  models tell the log-probabilities of those tokens; with d = log p_base - log p_version each
  token counts exp(-d) - 1 + d, the unbiased and never negative estimator k3 of Schulman
  ("Approximating KL divergence", 2020).
- Variety: distinct-2, different word pairs per word pair (Li et al. 2016, arXiv 1510.03055), and
  the compression ratio of all answers joined, which tells templates better (Shaib et al. 2024,
  arXiv 2403.00553). Both depend on length, so that length stands beside them.
"""

import asyncio
import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from promotion.paired import Floats, cluster_mean
from promotion.suites.suite import Item
from serving.engine import ChatRequest, Engine
from serving.records import BASE_SLOT, Message, Record

ANSWER_TOKENS = 16
"""Tokens of the base's answer to each prompt, at most; a server is asked once for each."""


class AnswerShape(Record):
    """Length and variety of one arm's answers to one suite."""

    tokens: float
    """Mean tokens of an answer."""
    distinct_2: float | None
    """Share of word pairs that are different, in (0, 1]; None without any pair."""
    compression_ratio: float | None
    """Bytes of all answers to bytes compressed; higher is more alike. None for no text."""


class Distance(Record):
    """Distance of one version from the base."""

    prompts: int
    tokens: int
    kl: float
    """Nats a token."""
    standard_error: float
    """By prompts, whose tokens are not independent; 0 for a single one."""


class Drift(Record):
    """How far both arms are from the base, and how they answer."""

    challenger: Distance | None
    """None if nothing was measured."""
    champion: Distance | None
    """None also where the champion is the base itself."""
    answers_challenger: AnswerShape
    """On the primary suite."""
    answers_champion: AnswerShape


def answer_shape(answers: Sequence[Message], tokens: float) -> AnswerShape:
    """Return the shape of answers that took `tokens` each on average; calls count as text."""
    texts = [
        " ".join([a.content, *(f"{c.name} {c.arguments}" for c in a.tool_calls)]).strip()
        for a in answers
    ]
    pairs = [pair for words in map(str.split, texts) for pair in itertools.pairwise(words)]
    joined = "\n".join(texts).encode()
    return AnswerShape(
        tokens=tokens,
        distinct_2=len(set(pairs)) / len(pairs) if pairs else None,
        compression_ratio=len(joined) / len(zlib.compress(joined, 9)) if joined.strip() else None,
    )


@dataclass(frozen=True, slots=True)
class BaseAnswer:
    """What the base answered to a prompt, and how likely it found each token."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    logprobs: tuple[float, ...]


async def base_answers(engine: Engine, items: Sequence[Item], seed: int) -> list[BaseAnswer]:
    """Return the base's own answers to the items' prompts, drawn by `seed`.

    Items without an answer, or from an engine that tells no token ids, are left out.
    """

    async def answer(number: int, item: Item) -> BaseAnswer | None:
        result = await engine.chat(
            ChatRequest(
                model=BASE_SLOT,
                messages=item.messages,
                tools=item.tools,
                max_tokens=ANSWER_TOKENS,
                temperature=1.0,
                seed=seed + number,
                continue_final=bool(item.choices),
            )
        )
        prompt, said = result.prompt_token_ids or (), result.completion_token_ids or ()
        if not prompt or not said:
            return None
        logprobs = await engine.logprobs(BASE_SLOT, prompt + said, len(prompt))
        return BaseAnswer(prompt, said, logprobs)

    answers = await asyncio.gather(*(answer(n, item) for n, item in enumerate(items)))
    return [answer for answer in answers if answer is not None]


async def measure_distance(
    engine: Engine, answers: Sequence[BaseAnswer], model: str
) -> Distance | None:
    """Return the forward KL of a served version, on answers of the base; None without any."""

    async def log_ratios(one: BaseAnswer) -> Floats:
        told = await engine.logprobs(model, one.prompt + one.answer, len(one.prompt))
        return np.array(one.logprobs, np.float64) - np.array(told, np.float64)

    return distance_of(await asyncio.gather(*map(log_ratios, answers)))


def distance_of(log_ratios: Sequence[Floats]) -> Distance | None:
    """Return the distance from log p_base - log p_version of each token, one array a prompt."""
    terms = [np.expm1(-d_T) + d_T for d_T in log_ratios if len(d_T)]
    if not terms:
        return None
    value_N = np.concatenate(terms)
    prompt_N = np.repeat(np.arange(len(terms)), [len(t) for t in terms])
    error = cluster_mean(value_N, prompt_N).standard_error if len(terms) > 1 else 0.0
    return Distance(
        prompts=len(terms), tokens=len(value_N), kl=float(value_N.mean()), standard_error=error
    )
