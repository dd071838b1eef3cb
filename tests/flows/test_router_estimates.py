"""`flows router estimate` over a small lake of explored turns whose truth is known.

The turns are made by the real turn code, whose router explores (`explored_traffic`); lake,
attribution, outcome model, head and the tiny random base are the real parts.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from explored_traffic import PROFILE, explored_records, topic_of, true_value
from tiny import make_tiny_base
from trace_records import write_spool

from flows.config import Settings
from flows.router_estimates import HeadNotFound, estimate_stage, find_head
from serving.head import HeadCard, HeadInvalid, HiddenStateInvalid, RouterHead, save_head
from serving.records import Turn
from serving.slots import UnknownSlot
from traces.attribute import attribute
from traces.attribution.off_policy import EstimateRefused
from traces.ingest import ingest
from training.artifact import base_digest

pytestmark = pytest.mark.timeout(300)
FLOWS = Path(sys.executable).with_name("flows")


@pytest.fixture(scope="module")
def records():
    """Records of 1,600 turns, of which 0.4 are drawn."""
    return explored_records(400, 0.4)


@pytest.fixture(scope="module")
def settings(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("estimates")
    ingest(folder / "home", write_spool(folder / "spool.jsonl", records))
    attribute(folder / "home", PROFILE)
    base = make_tiny_base(folder / "base")
    return Settings.model_validate(
        {"home": folder / "home", "base": base, "curation": {"holdout_percent": 50}}
    )


def flows(*words):
    return subprocess.run(
        [FLOWS, "router", "estimate", *map(str, words)], capture_output=True, text=True, check=False
    )


def stubborn_head(settings, slot, base=None, dims=64):
    """Save a head that names one slot whatever it is asked."""
    card = HeadCard(
        labels=PROFILE.labels, dims=dims, width=4, temperature=1.0,
        base_digest=base or base_digest(settings.base),
    )  # fmt: skip
    arrays = {name: np.zeros(shape, dtype=np.float32) for name, shape in card.shapes.items()}
    arrays["std"] += 1
    arrays["layers.2.bias"][PROFILE.labels.index(slot)] = 1
    return save_head(settings.home, card, arrays)


def test_each_slot_is_worth_about_what_it_truly_is(settings, records):
    found = estimate_stage(settings)
    assert [policy.policy for policy in found.policies] == list(PROFILE.labels)
    assert (found.turns, found.left_out) == (1600, {})
    assert found.epsilons == pytest.approx((0.4,))
    told = [r for r in records if isinstance(r, Turn)]
    right = sum(turn.answer.content == "right" for turn in told) / len(told)
    for policy in found.policies:
        value, truth = policy.value, true_value(records, policy.policy)
        # Four standard errors: 1 in 16,000 by chance, and the seed is fixed.
        for name in ("ips", "snips", "dr"):
            one = getattr(value, name)
            assert abs(one.estimate - truth) < 4 * one.se
            assert one.lower < one.estimate < one.upper
        assert value.logged.estimate == pytest.approx(right)
        assert value.gain.estimate == pytest.approx(value.dr.estimate - right)
        assert (value.n, value.conversations, policy.versions) == (1600, 400, 1)
    best = {policy.policy: policy.value for policy in found.policies}["L2"]
    worst = {policy.policy: policy.value for policy in found.policies}["L1"]
    assert worst.gain.upper < 0
    assert best.dr.estimate > worst.dr.estimate


def test_a_condition_asks_about_some_requests_only(settings, records):
    pages = "request LIKE '%button%' OR request LIKE '%form%' OR request LIKE '%card%'"
    told = [r for r in records if isinstance(r, Turn)]
    picked = [t for t in told if any(word in t.request for word in ("button", "form", "card"))]
    assert {topic_of(turn.request) for turn in picked} == {"page"}
    with pytest.raises(EstimateRefused, match=f"The {len(picked)} logged turns are worth"):
        estimate_stage(settings, "L2", where=pages)
    value = estimate_stage(settings, "L0", where=pages).policies[0].value
    assert value.n == len(picked)
    assert value.dr.lower < 0.2 < value.dr.upper


def test_a_head_is_judged_on_the_users_it_did_not_learn_from(settings):
    head = stubborn_head(settings, "L0")
    (policy,) = estimate_stage(settings, head=head.name).policies
    every = estimate_stage(settings, "L0").policies[0].value
    assert policy.policy == head.name
    assert 600 < policy.value.n < 1000
    assert policy.value.dr.estimate == pytest.approx(every.dr.estimate, abs=4 * policy.value.dr.se)
    nobody = settings.model_copy(
        update={"curation": settings.curation.model_copy(update={"holdout_percent": 0})}
    )
    with pytest.raises(EstimateRefused, match="held out"):
        estimate_stage(nobody, head=head.name)


def test_a_head_of_another_base_or_name_is_refused(settings, tmp_path):
    other = stubborn_head(settings, "L1", base="sha256:" + "0" * 64)
    with pytest.raises(HiddenStateInvalid, match="was trained on base"):
        estimate_stage(settings, head=other.name)
    assert find_head(settings.home, other.digest, PROFILE.labels).name == other.name
    assert find_head(settings.home, other.digest[7:30], PROFILE.labels).name == other.name
    with pytest.raises(HeadNotFound, match=r"No head is called 'router@000000000000'.*router@"):
        find_head(settings.home, "router@000000000000", PROFILE.labels)
    with pytest.raises(HeadNotFound, match="there are: none"):
        find_head(tmp_path, "", PROFILE.labels)
    folder = settings.home / "heads" / other.digest.removeprefix("sha256:")
    assert find_head(tmp_path, str(folder), PROFILE.labels).digest == other.digest
    with pytest.raises(HeadInvalid):
        find_head(settings.home, other.name, ("L0", "L1"))
    assert isinstance(other, RouterHead)


def test_the_command_prints_a_table_or_json(settings):
    table = flows("--home", settings.home)
    assert table.returncode == 0, table.stderr
    assert [line.split()[0] for line in table.stdout.splitlines() if line.startswith(" L")] == [
        "L0", "L1", "L2", "L3"
    ]  # fmt: skip
    assert "explore a share 0.4" in table.stderr
    told = flows("--home", settings.home, "--slot", "L2", "--json")
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert found == estimate_stage(settings, "L2").model_dump(mode="json")


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (("--slot", "L2", "--min-ess", "900"), 1, "at least 900 are needed"),
        (("--slot", "L2", "--min-ess", "50"), 2, "--min-ess"),
        (("--slot", "L2", "--head", "router@0"), 2, "one of --slot and --head"),
    ],
)
def test_what_cannot_be_told_is_said_in_one_line(settings, words, status, line):
    done = flows("--home", settings.home, *words)
    assert (done.returncode, done.stdout) == (status, "")
    assert line in done.stderr
    assert status == 2 or len(done.stderr.splitlines()) == 1


def test_a_slot_that_is_not_there(settings):
    with pytest.raises(UnknownSlot, match="L9"):
        estimate_stage(settings, "L9")
