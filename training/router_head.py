"""Train a router head: a three-layer network from the base's hidden state to a slot.

In: the rows of `curation.routes` and a function that embeds a text, such as
`Engine.embed`. Out: a head under `<home>/heads/` and its metrics on the held-out rows.
Rows of rare slots weigh more; the validation rows stop the training early and set the
temperature. The same rows, hidden states and settings give the same bytes on one machine.
Run it with `flows router train`.
"""

import asyncio
import copy
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import nn

from curation.routes import RouteRow, Routes
from serving.errors import MolError
from serving.head import (
    CARD_NAME,
    MAX_PARAMETERS,
    HeadCard,
    HeadInvalid,
    RouterHead,
    parameter_count,
    read_card,
    save_head,
    unit,
)
from serving.records import SCHEMA_VERSION, content_id
from training.artifact import library_versions
from training.config import HeadConfig
from training.runs import code_version

Embed = Callable[[str], Awaitable[Sequence[float]]]
"""Returns the base's last hidden state after a text."""
Progress = Callable[[int, int], None]
"""Called with embedded texts and their total."""


class Worded(Protocol):
    """A turn, as far as a head sees it."""

    @property
    def text(self) -> str:
        """The request."""


EMBEDDED_AT_ONCE = 32
MAX_WEIGHT_RATIO = 10.0
"""A row of the rarest slot weighs at most this much more than one of the commonest."""
TEMPERATURES = (1.0, 10.0)
"""Only ever softer: a few validation rows that are all right would ask for zero."""
ECE_BINS = 10
_SIDES = ("train", "validation", "holdout")


class TooFewRoutes(MolError, ValueError):
    """The lake tells too few right slots to train a head on, or to judge one."""


@dataclass(frozen=True, slots=True)
class TrainedHead:
    """A head with what it learned from and how well it does."""

    head: RouterHead
    run_key: str
    metrics: dict[str, float]
    """`accuracy`, `log_loss` and `ece` of the `holdout` rows, `majority` (the accuracy of
    always naming the commonest slot of the training rows), `validation_accuracy`, numbers of
    rows by side, `epochs`, `temperature`, `parameters`, `seconds` of training alone."""


async def train_head(
    home: Path, routes: Routes, embed: Embed, base_digest: str, config: HeadConfig, seed: int
) -> TrainedHead:
    """Train a head, or return the one of an equal run.

    Raises:
        TooFewRoutes: if a side of the rows is too small.
        DiskFull: if the head could not be stored.
    """
    key = head_run_key(routes, base_digest, config, seed)
    known = find_head(home, key)
    if known is not None:
        return known
    labels = require_enough(routes, config)
    sides = [routes.of(split) for split in ("train", "validation", "holdout")]
    train, validation, holdout = [
        (await hidden_states(rows, embed), _targets(rows, labels)) for rows in sides
    ]
    started = time.perf_counter()
    fitted = await asyncio.to_thread(_fit, train, validation, len(labels), config, seed)
    metrics: dict[str, Any] = {
        "seconds": round(time.perf_counter() - started, 3),
        "epochs": fitted.epochs,
        "temperature": fitted.temperature,
        **{split: len(rows) for split, rows in zip(_SIDES, sides, strict=True)},
    }
    card = HeadCard(
        labels=labels,
        dims=train[0].shape[1],
        width=fitted.width,
        base_digest=base_digest,
        temperature=fitted.temperature,
    )
    draft = RouterHead(card, fitted.arrays)
    commonest = Counter(row.slot for row in sides[0]).most_common(1)[0][0]
    metrics |= score(draft.batch(holdout[0]), holdout[1]) | {
        "majority": sum(row.slot == commonest for row in sides[2]) / len(sides[2]),
        "validation_accuracy": score(draft.batch(validation[0]), validation[1])["accuracy"],
        "parameters": card.parameters,
    }
    origin = {
        "run_key": key, "routes_digest": routes.digest, "seed": seed, "metrics": metrics,
        "config": config.model_dump(), "libraries": library_versions(),
    }  # fmt: skip
    head = save_head(home, card.model_copy(update={"origin": origin}), fitted.arrays)
    return TrainedHead(head, key, metrics)


def head_run_key(routes: Routes, base_digest: str, config: HeadConfig, seed: int) -> str:
    """Return the content id of everything that decides a head's weights."""
    return content_id(
        {
            "schema": SCHEMA_VERSION,
            "routes": routes.digest,
            "base": base_digest,
            "config": config.model_dump(),
            "seed": seed,
            "code": code_version(),
            "libraries": library_versions(),
        }
    )


def find_head(home: Path, run_key: str) -> TrainedHead | None:
    """Return the whole, unaltered head of a run, None if it has to be trained (again)."""
    for trained in list_heads(home):
        if trained.run_key == run_key:
            return trained
    return None


def list_heads(home: Path) -> list[TrainedHead]:
    """Return the heads that training made, oldest first; damaged ones are not among them."""
    found = []
    cards = (home / "heads").glob(f"[0-9a-f]*/{CARD_NAME}")
    for path in sorted(cards, key=lambda p: (p.stat().st_mtime_ns, p.parent.name)):
        try:
            origin = read_card(path.parent).origin
            head = RouterHead.load(path.parent, f"sha256:{path.parent.name}")
        except HeadInvalid:
            continue
        if "run_key" in origin and "metrics" in origin:
            found.append(TrainedHead(head, origin["run_key"], origin["metrics"]))
    return found


def require_enough(routes: Routes, config: HeadConfig) -> tuple[str, ...]:
    """Return the labels of a head for these rows, in order.

    Raises:
        TooFewRoutes: naming the side that is too small, and where the turns went.
    """
    labels = tuple(sorted({row.slot for row in routes.of("train")}))
    counts = {s: sum(row.slot in labels for row in routes.of(s)) for s in _SIDES}
    problem = ""
    if counts["train"] < config.min_rows:
        problem = f"{counts['train']} training rows, and a head needs {config.min_rows}"
    elif len(labels) < 2:
        problem = f"training rows of slot {labels[0]!r} only, and a head needs two slots"
    elif not counts["validation"] or not counts["holdout"]:
        empty = "holdout" if counts["validation"] else "validation"
        problem = f"no {empty} rows of its slots, as too few users are known"
    if problem:
        lost = ", ".join(f"{n} {reason}" for reason, n in routes.dropped.items()) or "none"
        raise TooFewRoutes(
            f"There are {problem}. Of {routes.turns} turns seen, left out: {lost}. "
            "Ingest more traces with 'flows run ingest PATH'."
        )
    return labels


async def hidden_states(
    rows: Sequence[Worded], embed: Embed, progress: Progress | None = None
) -> np.ndarray:
    """Return the hidden state of each row's text; equal texts are embedded once."""
    gate = asyncio.Semaphore(EMBEDDED_AT_ONCE)
    texts = list(dict.fromkeys(row.text for row in rows))
    done = 0

    async def one(text: str) -> np.ndarray:
        nonlocal done
        async with gate:
            state = np.asarray(await embed(text), dtype=np.float32)
        done += 1
        if progress:
            progress(done, len(texts))
        return state

    states = dict(zip(texts, await asyncio.gather(*map(one, texts)), strict=True))
    return np.stack([states[row.text] for row in rows])


def score(probabilities_N_K: np.ndarray, targets_N: np.ndarray) -> dict[str, float]:
    """Return accuracy, mean log loss and expected calibration error.

    The error is that of Guo et al. 2017 over ten bins of equal width; a target that the head
    has no label for is -1: wrong, with the log loss of a vanishing probability.
    """
    chosen_N = probabilities_N_K.argmax(axis=1)
    confidence_N = probabilities_N_K.max(axis=1)
    right_N = chosen_N == targets_N
    of_target_N = np.where(
        targets_N < 0, 0.0, probabilities_N_K[np.arange(len(targets_N)), targets_N]
    )
    bins_N = np.minimum((confidence_N * ECE_BINS).astype(int), ECE_BINS - 1)
    gaps = [
        (bins_N == b).mean() * abs(right_N[bins_N == b].mean() - confidence_N[bins_N == b].mean())
        for b in np.unique(bins_N)
    ]
    return {
        "accuracy": float(right_N.mean()),
        "log_loss": float(-np.log(np.maximum(of_target_N, 1e-12)).mean()),
        "ece": float(sum(gaps)),
    }


def head_width(dims: int, labels: int, width: int) -> int:
    """Return the widest layer up to `width` that keeps a head under its limit."""
    while width > 1 and parameter_count(dims, width, labels) >= MAX_PARAMETERS:
        width -= 1
    return width


@dataclass(frozen=True, slots=True)
class _Fitted:
    arrays: dict[str, np.ndarray]
    width: int
    temperature: float
    epochs: int


def _targets(rows: Sequence[RouteRow], labels: Sequence[str]) -> np.ndarray:
    """Return the index of each row's slot, -1 for one that no training row has."""
    index = {label: n for n, label in enumerate(labels)}
    return np.array([index.get(row.slot, -1) for row in rows])


def _fit(
    train: tuple[np.ndarray, np.ndarray],
    validation: tuple[np.ndarray, np.ndarray],
    labels: int,
    config: HeadConfig,
    seed: int,
) -> _Fitted:
    """Train until the validation loss has not fallen for a while; keep the best weights."""
    hidden_N_D, target_N = unit(train[0]), train[1]
    mean_D = hidden_N_D.mean(axis=0)
    std_D = np.maximum(hidden_N_D.std(axis=0), 1e-6)
    x_N_D, y_N = torch.from_numpy((hidden_N_D - mean_D) / std_D), torch.from_numpy(target_N)
    known = validation[1] >= 0
    x_V_D = torch.from_numpy((unit(validation[0][known]) - mean_D) / std_D)
    y_V = torch.from_numpy(validation[1][known])
    width = head_width(hidden_N_D.shape[1], labels, config.width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(hidden_N_D.shape[1], width), nn.ReLU(), nn.Dropout(config.dropout),
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(config.dropout),
            nn.Linear(width, labels),
        )  # fmt: skip
        loss_of = nn.CrossEntropyLoss(weight=_class_weights(target_N, labels))
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        best, best_loss, best_epoch, epoch = copy.deepcopy(model.state_dict()), np.inf, 0, 0
        while epoch < config.epochs and epoch - best_epoch < config.patience:
            epoch += 1
            model.train()
            for batch in torch.randperm(len(y_N)).split(config.batch_size):
                optimizer.zero_grad()
                loss_of(model(x_N_D[batch]), y_N[batch]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                loss = float(nn.functional.cross_entropy(model(x_V_D), y_V))
            if loss < best_loss:
                best, best_loss, best_epoch = copy.deepcopy(model.state_dict()), loss, epoch
    model.load_state_dict(best)
    with torch.no_grad():
        logits_V_K = model.eval()(x_V_D).double()
    linear = [module for module in model if isinstance(module, nn.Linear)]
    arrays = {"mean": mean_D, "std": std_D}
    for n, layer in enumerate(linear):
        arrays[f"layers.{n}.weight"] = layer.weight.detach().numpy().copy()
        arrays[f"layers.{n}.bias"] = layer.bias.detach().numpy().copy()
    return _Fitted(arrays, width, _temperature(logits_V_K, y_V), epoch)


def _class_weights(target_N: np.ndarray, labels: int) -> torch.Tensor:
    """Weigh slots by the inverse of their share, within limits."""
    counts_K = np.bincount(target_N, minlength=labels)
    weights_K = np.minimum(counts_K.max() / counts_K, MAX_WEIGHT_RATIO)
    return torch.tensor(weights_K / weights_K.mean(), dtype=torch.float32)


def _temperature(logits_V_K: torch.Tensor, y_V: torch.Tensor) -> float:
    """Return the temperature of the lowest validation loss (Guo et al. 2017)."""

    def loss(log_temperature: float) -> float:
        return float(nn.functional.cross_entropy(logits_V_K / np.exp(log_temperature), y_V))

    found = minimize_scalar(loss, bounds=tuple(np.log(TEMPERATURES)), method="bounded")
    return round(float(np.exp(found.x)), 4)
