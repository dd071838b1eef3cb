"""Proves how told log-probabilities are judged against a trained artifact's, and the file of them.

Numbers made here; the engine is not the point. Real models are in `test_proving.py`, the real vLLM
in `tests/promotion/test_proof_vllm.py`.
"""

import random
from pathlib import Path

import pytest

from serving.proof import (
    RESOLUTION,
    Proof,
    ProofInvalid,
    Told,
    compare,
    distance,
    noise_floor,
    proof_path,
    read_proof,
    write_proof,
)

DIGEST = "sha256:" + "a" * 64
PROBES, SCORED = 4, 8


def told(seed: int, scale: float, around: Told | None = None) -> Told:
    """Return random log-probabilities, or some that are off `around` by `scale`."""
    draw = random.Random(seed)
    rows = around or tuple((-5.0,) * SCORED for _ in range(PROBES))
    return tuple(tuple(value + draw.gauss(0, scale) for value in row) for row in rows)


BASE = told(0, 2.0)


def proof(separation: float = 0.5) -> Proof:
    return Proof(
        digest=DIGEST, base_digest="sha256:" + "b" * 64, dtype="float32",
        probes=tuple(tuple(range(20)) for _ in range(PROBES)),
        logprobs=told(1, separation, BASE), base_logprobs=BASE, rounding=0.05,
    )  # fmt: skip


def test_a_proof_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_proof(tmp_path, DIGEST) is None
    write_proof(tmp_path, proof())
    assert read_proof(tmp_path, DIGEST) == proof()


def test_a_damaged_proof_and_one_of_another_adapter_are_refused(tmp_path: Path) -> None:
    path = write_proof(tmp_path, proof())
    other = "sha256:" + "c" * 64
    path.rename(proof_path(tmp_path, other))
    with pytest.raises(ProofInvalid, match="is of adapter"):
        read_proof(tmp_path, other)
    path.write_text("{")
    with pytest.raises(ProofInvalid, match="cannot be read"):
        read_proof(tmp_path, DIGEST)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("floor", [1e-5, 0.05])
def test_answers_within_the_noise_are_proved(seed: int, floor: float) -> None:
    verdict = compare("n", proof(), told(seed + 9, floor, proof().logprobs), floor)
    assert verdict.outcome == "proved"
    assert verdict.share == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("floor", [1e-5, 0.05, 0.2])
def test_the_bases_answers_are_told_from_the_adapters(seed: int, floor: float) -> None:
    verdict = compare("n", proof(), told(seed + 9, floor, BASE), floor)
    assert verdict.outcome == "failed"
    assert "the answers of the bare base" in verdict.words
    assert verdict.share == pytest.approx(0, abs=0.25)


def test_the_base_is_told_even_where_noise_hides_the_distance() -> None:
    """The adapter's step is smaller than what may be noise; its direction tells."""
    faint, floor = proof(0.06), 0.05
    for seed in range(20):
        served, base = (told(seed + 9, floor, t) for t in (faint.logprobs, BASE))
        assert distance(base, faint.logprobs) < 3 * floor
        assert compare("n", faint, served, floor).outcome == "proved"
        assert compare("n", faint, base, floor).outcome == "failed"


def test_another_versions_answers_are_named() -> None:
    other = told(5, 0.4, BASE)
    verdict = compare("n", proof(), told(9, 1e-5, other), 1e-5, {"'L2@old'": other})
    assert verdict.outcome == "failed"
    assert "the answers of 'L2@old'" in verdict.words


def test_a_cached_beginning_of_others_is_seen_in_one_probe_of_four() -> None:
    mixed = told(5, 0.4, BASE)[:1] + proof().logprobs[1:]
    verdict = compare("n", proof(), mixed, 0.05)
    assert verdict.outcome == "failed"
    assert "what a cache kept" in verdict.words


def test_an_adapter_below_the_noise_cannot_be_proved() -> None:
    faint = proof(0.01)
    verdict = compare("n", faint, faint.logprobs, 0.05)
    assert verdict.outcome == "inconclusive"
    assert "differs from the base by less than the engine's noise" in verdict.words


def test_an_adapter_that_is_the_base_cannot_be_proved() -> None:
    assert compare("n", proof(0.0), BASE, RESOLUTION).outcome == "inconclusive"


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_what_is_no_number_is_not_proved(value: float) -> None:
    broken = ((value, *proof().logprobs[0][1:]), *proof().logprobs[1:])
    assert compare("n", proof(), broken, 0.05).outcome == "failed"
    nothing = tuple((value,) * len(row) for row in BASE)
    assert compare("n", proof(), nothing, 0.05).outcome == "failed"


def test_the_floor_is_measured_and_never_below_what_float32_tells() -> None:
    assert noise_floor(BASE, BASE) == RESOLUTION
    off = told(3, 0.05, BASE)
    assert noise_floor(off, BASE) == distance(off, BASE) == pytest.approx(0.05, rel=0.3)
