"""What it takes to prove that an engine serves what was trained, as a pure comparison.

In: the log-probabilities that transformers and PEFT gave the trained artifact on the probes
(`<home>/proofs/<digest>.json`, written by training), and those that an engine tells under a
served name. Out: a `Verdict` in words.

The yardstick is measured, never typed: how far the engine is from transformers on the bare
base (number format, kernels, batch company). What engines do wrong silently moves log-probabilities
by far more than that.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from serving.disk import write_atomic
from serving.errors import MolError
from serving.records import SCHEMA_VERSION, Record, content_id

FOLDER = "proofs"
FLOORS = 3.0
"""A right answer is this many noise floors from its reference at most. Measured with the four
bundled adapters, in float32 and in bfloat16: 0.7 to 1.6, as adapters answer more or less sharply
than the base. A step to the base that is smaller than this is told by its direction."""
RESOLUTION = 1e-5
"""Least noise floor in nats a token: to float32, a log-probability near -10 is no finer than 1e-6,
and the sum over a vocabulary, in another order, costs another digit."""

Told = tuple[tuple[float, ...], ...]
"""Log-probabilities of the scored tokens, a row a probe."""


class ProofInvalid(MolError, ValueError):
    """A proof file cannot be read."""


class Proof(Record):
    """`proofs/<digest>.json`: what the trained artifact answers to the probes."""

    schema_version: int = SCHEMA_VERSION
    digest: str
    """The adapter's."""
    base_digest: str
    dtype: str
    """Number format of the reference, `float32`."""
    probes: tuple[tuple[int, ...], ...]
    """Token ids; the last ones of each are scored, as many as `logprobs` has of it."""
    logprobs: Told
    """Of transformers and PEFT."""
    base_logprobs: Told
    """Of the bare base."""
    rounding: float = Field(gt=0)
    """How far the bare base is off in bfloat16, nats a token: more noise no engine may make."""

    @property
    def probes_digest(self) -> str:
        """Content id of what is asked."""
        return content_id([[list(ids) for ids in self.probes], [len(row) for row in self.logprobs]])

    @property
    def questions(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """The probes, each with the place of its first scored token."""
        return tuple(
            (ids, len(ids) - len(row)) for ids, row in zip(self.probes, self.logprobs, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a served name answers as the artifact that it stands for."""

    name: str
    outcome: Literal["proved", "failed", "inconclusive"]
    words: str
    distance: float = math.nan
    """Root mean square of what the engine is off the reference, nats a token."""
    floor: float = math.nan
    """The same of the bare base: the noise that this engine makes."""
    separation: float = math.nan
    """The same between the references of adapter and base."""
    share: float = math.nan
    """How much of the step from base to adapter the engine has made: 1 all of it, 0 none."""


def proof_path(home: Path, digest: str) -> Path:
    """Return where an adapter's proof lies or would lie."""
    return home / FOLDER / f"{digest.removeprefix('sha256:')}.json"


def read_proof(home: Path, digest: str) -> Proof | None:
    """Return an adapter's proof, None if none was written.

    Raises:
        ProofInvalid: if there is one that cannot be read.
    """
    path = proof_path(home, digest)
    try:
        proof = Proof.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ProofInvalid(
            f"The proof {str(path)!r} cannot be read: {str(error).splitlines()[0]}. Delete it, "
            "and 'flows run gate' writes it anew."
        ) from error
    if proof.digest != digest:
        raise ProofInvalid(
            f"The proof {str(path)!r} is of adapter {proof.digest!r}. Delete it, and "
            "'flows run gate' writes the right one."
        )
    return proof


def write_proof(home: Path, proof: Proof) -> Path:
    """Write a proof as a whole and return its path; DiskFull if it could not be stored."""
    path = proof_path(home, proof.digest)
    write_atomic(path, proof.model_dump_json().encode() + b"\n")
    return path


def noise_floor(told: Told, base_logprobs: Told) -> float:
    """Return how far an engine's bare base is from its reference, in nats a token."""
    return max(RESOLUTION, distance(told, base_logprobs))


def distance(a: Told, b: Told) -> float:
    """Return the root mean square of the differences, in nats a token; not finite ones are inf."""
    total = math.fsum(d * d for d in _differences(a, b))
    found = math.sqrt(total / max(1, sum(map(len, a))))
    return found if math.isfinite(found) else math.inf


def compare(
    name: str, proof: Proof, told: Told, floor: float, known: Mapping[str, Told] | None = None
) -> Verdict:
    """Judge what an engine told under `name`.

    Args:
        name: the served name.
        proof: of the artifact that it stands for.
        told: the engine's log-probabilities of the proof's probes.
        floor: the engine's, by `noise_floor`.
        known: what other artifacts answer to these probes, by what to call them; a failure says
            whose answers these are.
    """
    off, separation = distance(told, proof.logprobs), distance(proof.logprobs, proof.base_logprobs)
    share = _share(told, proof) if math.isfinite(off) else math.nan
    limit = FLOORS * floor
    figures = (
        f"{off:.2g} nats a token from the trained artifact, noise floor {floor:.2g}, "
        f"{separation:.2g} between artifact and base"
    )
    measured = (off, floor, separation, share)
    if separation < floor:
        return Verdict(
            name, "inconclusive",
            f"{name!r} cannot be proved: it differs from the base by less than the engine's noise "
            f"({figures}). Train it for longer, or serve it in a finer number format.", *measured,
        )  # fmt: skip
    if off <= limit and share >= 0.5:
        return Verdict(name, "proved", f"{name!r} is what was trained ({figures}).", *measured)
    whose = _whose(told, {"the bare base": proof.base_logprobs} | dict(known or {}), limit)
    return Verdict(
        name, "failed", f"{name!r} is not what was trained: {figures}. {whose}", *measured
    )


def _whose(told: Told, known: Mapping[str, Told], limit: float) -> str:
    """Say which known answers these are."""
    off = {who: distance(told, theirs) for who, theirs in known.items()}
    nearest = min(off, key=lambda who: off[who])
    if off[nearest] <= limit:
        return f"These are the answers of {nearest}."
    return "Nothing known answers so: other bytes under this name, or what a cache kept of others."


def _share(told: Told, proof: Proof) -> float:
    """Project the engine's step away from the base on the artifact's."""
    step = list(_differences(proof.logprobs, proof.base_logprobs))
    made = _differences(told, proof.base_logprobs)
    length = math.fsum(s * s for s in step)
    return math.fsum(m * s for m, s in zip(made, step, strict=True)) / length if length else 0.0


def _differences(a: Told, b: Told) -> Sequence[float]:
    return [x - y for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)]
