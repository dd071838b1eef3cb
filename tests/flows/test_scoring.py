"""`flows suites score` as a person uses it: one suite, one set, one version, a mean with limits.

The command runs in a process of its own; the engine is the embedded one with a tiny random base,
whose answers are all wrong. The suite is HumanEval, from its package, run in the sandbox. A server
that changes is a stub.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.stats import binomtest
from stub_engine import Answer, stub_engine
from tiny_loop import tiny_settings

from flows.scoring import SuiteNotFound, find_suite, score_suite
from promotion.suites.config import SuitesConfig
from promotion.suites.sets import part_of
from serving.slots import load_profile

pytestmark = pytest.mark.timeout(600)

FLOWS = Path(sys.executable).with_name("flows")
PROFILE = load_profile()


def score(*words: object) -> subprocess.CompletedProcess[str]:
    command = [FLOWS, "suites", "score", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})


def test_a_base_is_scored_on_the_search_set_of_an_outside_suite(
    home: Path, tiny_base: Path
) -> None:
    done = score(
        "human-eval", "--limit", 3, "--home", home, "--base", tiny_base, "--json"
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    result = found.pop("score")
    assert found.pop("checker").startswith("human-eval 1.")
    assert found == {"suite": "human-eval", "slot": "L2", "set": "search", "version": "base"}
    assert (result["n"], result["clusters"], result["unjudged"]) == (3, 3, 0)
    wilson = binomtest(0, 3).proportion_ci(method="wilson")
    assert (result["mean"], result["lower"]) == (0.0, 0.0)
    assert result["upper"] == pytest.approx(wilson.high)


def test_a_suite_is_found_by_name_and_may_judge_another_slot(home: Path, tiny_base: Path) -> None:
    settings = tiny_settings(home, tiny_base, ())

    assert find_suite(settings, PROFILE, "human-eval", None)[0].slot == "L2"
    assert find_suite(settings, PROFILE, "human-eval", "L0")[0].slot == "L0"
    named = settings.model_copy(update={"suites": SuitesConfig(external={"human-eval": "L3"})})
    assert find_suite(named, PROFILE, "human-eval", None)[0].slot == "L3"
    suite, checker = find_suite(settings, PROFILE, "code", None)
    assert (suite.slot, checker.split()[0]) == ("L2", "mol-loop")
    assert "search" in {part_of(item.cluster) for item in suite.items}


def test_a_server_is_asked_anew_each_time_and_the_embedded_engine_once(
    home: Path, tiny_base: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.jsonl"
    wanted = {"verifier": "exact", "accepted": ["Yes."]}
    items = [{"text": f"Is {n} a number?", "reference": wanted} for n in range(20)]
    mine.write_text("\n".join(map(json.dumps, [{"suite": "mine", "slot": "L0"}, *items])))
    settings = tiny_settings(home, tiny_base, (), suites={"files": (mine,)})
    with stub_engine() as stub:
        server = settings.model_copy(update={"engine": stub.url})
        means, asked = [], []
        for said in ("Yes.", "No."):
            stub.default = Answer(text=said)
            means.append(score_suite(server, "mine", "L0", "search").score.mean)
            asked.append(len(stub.chats))

    assert means == [1.0, 0.0]
    assert 0 < asked[0] == asked[1] - asked[0]
    assert not (home / "evals").exists()
    score_suite(settings, "mine", "L0", "search")
    assert len(list((home / "evals").iterdir())) == 1


def test_a_suite_that_is_not_there_is_said(home: Path, tiny_base: Path) -> None:
    settings = tiny_settings(home, tiny_base, ())

    with pytest.raises(SuiteNotFound, match="No suite 'code' of L1; there are bfcl,"):
        find_suite(settings, PROFILE, "code", "L1")
    with pytest.raises(SuiteNotFound, match=r"Which slot is 'a/b\.py@c' to judge"):
        find_suite(settings, PROFILE, "a/b.py@c", None)


def test_what_a_suite_needs_is_said_in_one_line(home: Path, tmp_path: Path) -> None:
    config = tmp_path / "elsewhere.toml"
    config.write_text(f"[suites]\nbfcl_venv = '{tmp_path / 'none'}'\n")
    done = score("bfcl", "--home", home, "--config", config)

    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("flows: No finished environment in ")
    assert "make bfcl-install" in line


def test_the_sealed_set_is_not_offered(home: Path) -> None:
    assert score("code", "--set", "sealed", "--home", home).returncode == 2
