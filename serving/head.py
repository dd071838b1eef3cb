"""The router head: a small network over the base's hidden state that names a slot.

In: the last hidden state of the base model after a request's text (`Engine.embed`). Out: a
probability for each label. Three linear layers with ReLU between, after Macaron-V1's
router network (three layers, hidden 256, under one million parameters); where we differ it
names one slot, not a mix of four.

A head is a folder of `head.json` and `head.safetensors`, a version like any adapter: its
digest covers what it says and weighs, its name is `router@<12 hex>`. Free of torch.
"""

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError, model_validator

from serving.disk import new_folder
from serving.errors import MolError
from serving.records import SCHEMA_VERSION, SLOT_PATTERN, AdapterVersion, Record, content_id
from serving.tensors import BadTensorFile, arrays_digest, not_finite, read_header

HEAD_SLOT = "router"
"""Slot of role `head` in the registry and the slot table."""
CARD_NAME = "head.json"
WEIGHTS_NAME = "head.safetensors"
MAX_PARAMETERS = 1_000_000
MAX_WIDTH = 256

_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})

Floats = npt.NDArray[np.float32]


class HeadInvalid(MolError, ValueError):
    """A folder holds no head that may route here."""


class HiddenStateInvalid(MolError, ValueError):
    """A hidden state is none that the head was made for."""


class HeadCard(Record):
    """`head.json`: what the head takes and says, and where it came from."""

    schema_version: int = SCHEMA_VERSION
    labels: tuple[Annotated[str, Field(pattern=SLOT_PATTERN)], ...] = Field(min_length=2)
    """Slots it can name, in the order of its outputs."""
    dims: int = Field(ge=1)
    """Numbers in a hidden state."""
    width: int = Field(ge=1, le=MAX_WIDTH)
    """Of the two hidden layers."""
    base_digest: str
    """Base model whose hidden states it was trained on."""
    temperature: float = Field(gt=0, allow_inf_nan=False)
    """Divides the outputs before the softmax (Guo et al. 2017, arXiv 1706.04599)."""
    origin: dict[str, Any] = Field(default_factory=dict)
    """Run, data, metrics; no part of the digest."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.schema_version != SCHEMA_VERSION:
            raise ValueError(f"schema_version {self.schema_version!r} is not {SCHEMA_VERSION!r}")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels must differ, got {', '.join(self.labels)}")
        if self.parameters >= MAX_PARAMETERS:
            raise ValueError(
                f"{self.parameters:,} parameters; a head has fewer than {MAX_PARAMETERS:,}"
            )
        return self

    @property
    def parameters(self) -> int:
        """Number of weights and biases."""
        return parameter_count(self.dims, self.width, len(self.labels))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the weights file with its shape."""
        d, w, k = self.dims, self.width, len(self.labels)
        return {
            "mean": (d,),
            "std": (d,),
            "layers.0.weight": (w, d),
            "layers.0.bias": (w,),
            "layers.1.weight": (w, w),
            "layers.1.bias": (w,),
            "layers.2.weight": (k, w),
            "layers.2.bias": (k,),
        }


class RouterHead:
    """A loaded head; immutable, cheap to ask (a fraction of a millisecond)."""

    def __init__(self, card: HeadCard, arrays: Mapping[str, Floats]) -> None:
        """Take the weights of `card.shapes`; `load` reads them from a folder."""
        self.card = card
        self.digest = head_digest(card, arrays)
        self._mean, self._std = arrays["mean"], arrays["std"]
        self._layers = [
            (arrays[f"layers.{n}.weight"], arrays[f"layers.{n}.bias"]) for n in range(3)
        ]

    @classmethod
    def load(
        cls, folder: Path, expected_digest: str | None, slots: Collection[str] | None = None
    ) -> Self:
        """Read a head.

        Args:
            folder: holds `head.json` and `head.safetensors`.
            expected_digest: what its content must be; None takes what is there.
            slots: those that may be named; None allows all. A slot that the head does not
                know is no error: it gets no turn from it.

        Raises:
            HeadInvalid: naming the first thing that is wrong.
        """
        card = read_card(folder)
        head = cls(card, _read_weights(folder, card))
        if expected_digest is not None and head.digest != expected_digest:
            raise _refused(
                folder, f"its content has digest {head.digest!r}, not {expected_digest!r}"
            )
        if slots is not None:
            head.check_slots(slots)
        return head

    @property
    def name(self) -> str:
        """The name of this version, `router@3fa9c1d2e4b5`."""
        return AdapterVersion(slot=HEAD_SLOT, digest=self.digest).name

    @property
    def labels(self) -> tuple[str, ...]:
        """Slots it can name."""
        return self.card.labels

    def check_slots(self, slots: Collection[str]) -> None:
        """Refuse a head that could name a slot which is not there.

        Raises:
            HeadInvalid: naming the label.
        """
        for label in self.labels:
            if label not in slots:
                raise HeadInvalid(
                    f"Head {self.name!r} can name slot {label!r}, which the slot table does not "
                    f"have (it has {', '.join(slots) or 'none'}). Train one for these slots with "
                    "'flows router train'."
                )

    def probabilities(self, hidden: Sequence[float]) -> dict[str, float]:
        """Return the probability of each label for one hidden state.

        Raises:
            HiddenStateInvalid: if it has not the head's size or a number is not finite.
        """
        x_D = np.asarray(hidden, dtype=np.float32)
        if x_D.shape != (self.card.dims,):
            raise HiddenStateInvalid(
                f"A hidden state of shape {x_D.shape!r} came for head {self.name!r}, which takes "
                f"{self.card.dims} numbers. Serve the base it was trained on, or train one for "
                "this base with 'flows router train'."
            )
        if not np.isfinite(x_D).all():
            raise HiddenStateInvalid(
                f"A hidden state for head {self.name!r} holds a number that is not finite. "
                "Look at the server that computes it."
            )
        return dict(zip(self.labels, self.batch(x_D[None])[0].tolist(), strict=True))

    def batch(self, hidden_B_D: Floats) -> npt.NDArray[np.float64]:
        """Return the probabilities of many hidden states, one row each, in order of labels."""
        x_B_D = (unit(hidden_B_D) - self._mean) / self._std
        for n, (weight, bias) in enumerate(self._layers):
            x_B_D = x_B_D @ weight.T + bias
            if n < 2:
                x_B_D = np.maximum(x_B_D, 0.0)
        logits_B_K = x_B_D.astype(np.float64) / self.card.temperature
        powers_B_K = np.exp(logits_B_K - logits_B_K.max(axis=1, keepdims=True))
        result: npt.NDArray[np.float64] = powers_B_K / powers_B_K.sum(axis=1, keepdims=True)
        return result


def unit(hidden_B_D: Floats) -> Floats:
    """Bring hidden states to length one, as some embedding servers do before they answer."""
    length_B = np.linalg.norm(hidden_B_D.astype(np.float64), axis=1, keepdims=True)
    scaled: Floats = (hidden_B_D / np.maximum(length_B, 1e-12)).astype(np.float32)
    return scaled


def parameter_count(dims: int, width: int, labels: int) -> int:
    """Return the number of weights and biases of a head."""
    return width * (dims + 1) + width * (width + 1) + labels * (width + 1)


def head_folder(home: Path, digest: str) -> Path:
    """Return where the head with this digest lies or would lie."""
    return home / "heads" / digest.removeprefix("sha256:")


def head_digest(card: HeadCard, arrays: Mapping[str, Floats]) -> str:
    """Return the digest of what a head says and weighs, its origin left out."""
    config = card.model_dump(mode="json", exclude={"origin"})
    return content_id({"config": config, "tensors": arrays_digest(arrays)})


def save_head(home: Path, card: HeadCard, arrays: Mapping[str, Floats]) -> RouterHead:
    """Publish a head under its digest; the same content again changes nothing.

    Raises:
        HeadInvalid: if the tensors are not those of the card.
        DiskFull: if it could not be stored.
    """
    from safetensors.numpy import save

    head = RouterHead(card, arrays)
    final = head_folder(home, head.digest)
    if final.exists():
        try:
            return RouterHead.load(final, head.digest)
        except HeadInvalid:
            shutil.rmtree(final)
    with new_folder(final) as new:
        (new / WEIGHTS_NAME).write_bytes(
            save({n: np.ascontiguousarray(a) for n, a in arrays.items()})
        )
        (new / CARD_NAME).write_text(json.dumps(card.model_dump(mode="json"), indent=1) + "\n")
        _read_weights(new, card)
    return RouterHead.load(final, head.digest)


def read_card(folder: Path) -> HeadCard:
    """Read a head's `head.json`.

    Raises:
        HeadInvalid: if there is none, or a field is wrong.
    """
    if not folder.is_dir():
        raise HeadInvalid(f"No head at {str(folder)!r}. Make one with 'flows router train'.")
    pickles = sorted(f.name for f in folder.rglob("*") if f.suffix.lower() in _PICKLE_SUFFIXES)
    if pickles:
        raise _refused(
            folder, f"it holds the pickle file {pickles[0]!r}, which runs code when loaded"
        )
    try:
        return HeadCard.model_validate_json((folder / CARD_NAME).read_bytes())
    except OSError as error:
        raise _refused(folder, f"{CARD_NAME}: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "as a whole"
        raise _refused(folder, f"{CARD_NAME}: {place}: {first['msg']}") from error


def _read_weights(folder: Path, card: HeadCard) -> dict[str, Floats]:
    """Return the tensors, after the header was compared with the card."""
    from safetensors.numpy import load_file

    path = folder / WEIGHTS_NAME
    try:
        tensors = read_header(path)
    except OSError as error:
        raise _refused(folder, f"{WEIGHTS_NAME}: {error.strerror or error}") from error
    except BadTensorFile as error:
        raise _refused(folder, str(error)) from error
    for name in sorted({*card.shapes, *tensors}):
        wanted, found = card.shapes.get(name), tensors.get(name)
        if wanted is None or found is None or found.shape != wanted or found.dtype != "F32":
            told = f"{found.dtype} of shape {found.shape}" if found else "missing"
            must = f"F32 of shape {wanted}" if wanted else "left out"
            raise _refused(folder, f"tensor {name!r} is {told}, must be {must}")
    for name in not_finite(tensors):
        raise _refused(folder, f"tensor {name!r} has a value that is not finite")
    arrays: dict[str, Floats] = load_file(path)
    if not (arrays["std"] > 0).all():
        raise _refused(folder, "tensor 'std' has a value that is not positive")
    return arrays


def _refused(folder: Path, reason: str) -> HeadInvalid:
    return HeadInvalid(
        f"Head {str(folder)!r} cannot be used: {reason}. Train one with 'flows router train'."
    )
