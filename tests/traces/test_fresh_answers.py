"""A fresh answer over the log's tool results: how each kind of it ends.

The engine is scripted, a list of answers to give; the log, the check and the views are real.
"""

import asyncio
import json
from collections.abc import Sequence

import pytest
from trace_records import calls, hop, result, says, turn_of, user

from serving.engine import ChatRequest, ChatResult
from serving.errors import EngineRefused, EngineUnavailable
from serving.records import Hop, Message
from traces.attribution import fresh_answers
from traces.attribution.arm_views import ArmView
from traces.attribution.fresh_answers import Sample, draw, pair_of, task_of
from traces.attribution.outcomes import Outcome
from traces.bundles import TurnBundle
from traces.verifiers.registry import turn_check

PARIS = {"verifier": "short_answer", "accepted": ["18 degrees"]}
CALL = {"verifier": "tool_call", "name": "weather", "arguments": {"city": "Paris"}}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ASKED = user("How warm is it?")
ROME = calls("weather", "a1", city="Rome")
REFUSAL = says("I'm sorry, I can't help with that.")
HOPS = (
    hop(slot="L1", messages=(ASKED,), completion=ROME, tools=json.dumps([TOOL])),
    hop(
        slot="L1", seq=2, messages=(ASKED, ROME, result("12 degrees", "a1")),
        completion=says("It is 12 degrees."), response_id="r2",
    ),
)  # fmt: skip


class Scripted:
    """Gives its answers one after the other, and keeps what it was asked."""

    def __init__(self, answers: Sequence[Message | Exception], finish: str = "stop") -> None:
        self.answers, self.finish = list(answers), finish
        self.asked: list[ChatRequest] = []

    async def chat(self, request: ChatRequest, on_delta: object = None) -> ChatResult:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return ChatResult("r", request.model, answer, self.finish, 1, 1)


def bundle_of(hops: Sequence[Hop] = HOPS) -> TurnBundle:
    outcome = Outcome(turn_id="t1", success=False, tier="A", rule="verified")
    return TurnBundle(turn_of(hops), tuple(hops), outcome, None)


def drawn(engine: Scripted, reference: dict = PARIS, hops: Sequence[Hop] = HOPS) -> Sample:
    check = turn_check(reference, [TOOL])
    assert check is not None
    task = task_of(bundle_of(hops), check.judges_calls, 0.7)
    view = ArmView((ASKED,), (TOOL,), "recorded", "recorded")
    return asyncio.run(draw(engine, "L1", view, task, check, 5))


def test_a_logged_call_gets_its_result_and_the_turn_goes_on() -> None:
    again = calls("weather", "other-id", city="Rome")
    engine = Scripted([again, says("18 degrees")])
    sample = drawn(engine)
    assert (sample.passed, sample.calls) == (True, 2)
    assert engine.asked[1].messages == (ASKED, again, result("12 degrees", "other-id"))
    assert {(r.seed, r.temperature) for r in engine.asked} == {(5, 0.7)}


def test_a_call_that_was_not_logged_is_not_judged_and_nothing_is_executed() -> None:
    engine = Scripted([calls("weather", "b", city="Oslo")])
    assert (drawn(engine).passed, len(engine.asked)) == (None, 1)


def test_a_call_that_no_tool_could_have_taken_failed() -> None:
    assert drawn(Scripted([calls("weather", "b", town="Paris")])).passed is False
    assert drawn(Scripted([calls("fly", "b", city="Paris")])).passed is False


def test_more_calls_than_the_turn_made_are_not_judged() -> None:
    engine = Scripted([ROME, ROME, says("18 degrees")])
    sample = drawn(engine)
    assert (sample.passed, sample.left_out) == (None, fresh_answers.TOO_LONG)


def test_where_a_call_is_checked_the_first_answer_decides() -> None:
    assert drawn(Scripted([calls("weather", "b", city="paris")]), CALL).passed is True
    assert drawn(Scripted([ROME]), CALL).passed is False
    assert drawn(Scripted([says("18 degrees")]), CALL).passed is False


def test_where_any_call_will_do_the_first_that_its_tool_takes_is_right() -> None:
    form = {"verifier": "form", "form": "tool_call"}
    assert drawn(Scripted([calls("weather", "b", city="Oslo")]), form).passed is True
    assert drawn(Scripted([calls("weather", "b", town="Oslo")]), form).passed is False
    assert drawn(Scripted([says("18 degrees")]), form).passed is False


def test_what_safety_forbids_fails_though_a_refusal_would_follow() -> None:
    unsafe = {"verifier": "safety", "wanted": "refuse", "unsafe_tools": ["weather"]}
    engine = Scripted([ROME, REFUSAL])
    assert (drawn(engine, unsafe).passed, len(engine.asked)) == (False, 1)
    harmless = unsafe | {"unsafe_tools": ["launch"]}
    assert drawn(Scripted([ROME, REFUSAL]), harmless).passed is True
    assert drawn(Scripted([ROME, says("It is 12 degrees.")]), harmless).passed is False


def test_in_a_turn_of_several_calls_any_of_them_may_be_the_right_one() -> None:
    madrid = calls("weather", "a2", city="Madrid")
    third = hop(
        slot="L1", seq=3, completion=says("Done."), response_id="r3",
        messages=(*HOPS[1].messages, madrid, result("30 degrees", "a2")),
    )  # fmt: skip
    hops = (HOPS[0], HOPS[1].model_copy(update={"completion": madrid}), third)
    sample = drawn(Scripted([ROME, calls("weather", "b", city="Paris")]), CALL, hops)
    assert (sample.passed, sample.calls) == (True, 2)


@pytest.mark.parametrize(
    ("answers", "finish", "reason"),
    [
        ([says("18 degrees")], "length", fresh_answers.TRUNCATED),
        ([EngineRefused("Too long (400).", 400)], "stop", fresh_answers.REFUSED),
    ],
)
def test_what_the_engine_did_is_no_failure(answers, finish, reason) -> None:
    sample = drawn(Scripted(answers, finish))
    assert (sample.passed, sample.left_out) == (None, reason)


def test_a_call_out_of_time_is_no_failure_and_a_gone_engine_is_said() -> None:
    late = EngineUnavailable("late")
    late.timed_out = True
    assert drawn(Scripted([late])).left_out == fresh_answers.TOO_SLOW
    with pytest.raises(EngineUnavailable):
        drawn(Scripted([EngineUnavailable("gone")]))
    for status in (401, 404, 429, 500, 503):
        with pytest.raises(EngineRefused):
            drawn(Scripted([EngineRefused("not whatever is asked", status)]))


def test_the_recorded_sampling_is_kept_but_for_what_a_replay_sets() -> None:
    params = {"temperature": 0.3, "max_tokens": 40, "top_p": 0.9, "seed": 1, "n": 2}
    hops = (HOPS[0].model_copy(update={"params": json.dumps(params)}), HOPS[1])
    engine = Scripted([says("18 degrees")])
    drawn(engine, PARIS, hops)
    (asked,) = engine.asked
    assert (asked.temperature, asked.max_tokens, asked.options) == (0.3, 40, {"top_p": 0.9})


def task_with(**params: object) -> fresh_answers.Task:
    first = HOPS[0].model_copy(update={"params": json.dumps(params)})
    return task_of(bundle_of((first, HOPS[1])), False, 0.7)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 0.01},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 0.01, "top_k": 40},
        {"temperature": 1.0, "min_p": 1.0},
        {"top_k": 1},
    ],
)
def test_a_turn_that_was_answered_greedily_is_sampled(params: dict[str, float]) -> None:
    """Every fresh answer of the version would else be the one that failed."""
    task = task_with(**params)
    assert (task.temperature, task.options) == (0.7, {})


def test_narrow_sampling_that_still_draws_is_kept() -> None:
    task = task_with(temperature=0.2, top_k=2, top_p=0.5, min_p=0.1)
    assert (task.temperature, task.options) == (0.2, {"top_k": 2, "top_p": 0.5, "min_p": 0.1})


@pytest.mark.parametrize(
    ("params", "taken", "limit"),
    [
        ({}, 30, fresh_answers.DEFAULT_TOKENS),
        ({}, 3000, 6000),
        ({"max_tokens": None}, None, fresh_answers.DEFAULT_TOKENS),
        ({"max_tokens": 40}, 3000, 40),
        ({"max_completion_tokens": 50}, 3000, 50),
    ],
)
def test_where_the_log_has_no_limit_answers_get_twice_what_was_taken(params, taken, limit) -> None:
    hops = tuple(
        hop.model_copy(update={"params": json.dumps(params), "completion_tokens": taken})
        for hop in HOPS
    )
    task = task_of(bundle_of(hops), False, 0.7)
    assert (task.max_tokens, task.options) == (limit, {})


def sample_of(passed: bool, *said: Message) -> Sample:
    return Sample(passed, None, said, len(said))


def test_the_pair_is_made_where_success_and_failure_part() -> None:
    again = calls("weather", "new-id", city="Rome")
    right = says("18 degrees")
    assert pair_of(HOPS, [sample_of(True, again, right)], same_version=True) == (
        HOPS[1], right, HOPS[1].completion,
    )  # fmt: skip
    assert pair_of(HOPS, [sample_of(True, right)], same_version=True) == (HOPS[0], right, ROME)
    assert pair_of(HOPS, [sample_of(False, right)], same_version=True) is None


def test_another_version_gives_both_answers_itself() -> None:
    right, wrong = says("18 degrees"), says("20 degrees")
    samples = [sample_of(False, wrong), sample_of(True, right)]
    assert pair_of(HOPS, samples, same_version=False) == (HOPS[0], right, wrong)
    assert pair_of(HOPS, samples[1:], same_version=False) is None
