"""The judge over settings: the server, its model, the run. No Prefect."""

import asyncio
import os
from typing import TYPE_CHECKING

from flows import stages
from flows.config import Settings
from serving.errors import EngineRefused, EngineUnavailable, MolError
from traces.config import JUDGE_KEY

if TYPE_CHECKING:
    from serving.openai_engine import OpenAIEngine
    from traces.attribute import AttributeReport
    from traces.attribution.judge import JudgeReport

_AT_ONCE = 16
"""Calls that a judge's server gets at the same time."""


class JudgeStopped(MolError, ConnectionError):
    """The judge's server went away; what it said before is kept."""


def attribute_and_judge(
    settings: Settings, progress: stages.Progress | None = None
) -> "AttributeReport":
    """Settle outcomes and blame; where a judge is configured, ask it and settle again."""
    report = stages.attribute_stage(settings, progress)
    if settings.attribution.judge is None:
        return report
    judged = judge_stage(settings)
    if judged.calls or judged.withdrawn:
        report = stages.attribute_stage(settings, progress)
    return report.model_copy(update={"judge": judged})


def judge_stage(settings: Settings) -> "JudgeReport":
    """Measure the judge of the settings and let it judge, if it counts.

    A server that is not there stops the judging, not the loop: the report says so.
    """
    from traces.attribution.agreement import agreement
    from traces.attribution.judge import JudgeReport

    asked = settings.attribution
    try:
        return asyncio.run(_judge(settings))
    except (EngineUnavailable, EngineRefused) as problem:
        return JudgeReport(
            judge=asked.judge_model or str(asked.judge),
            agreement=agreement(()),
            refused=None,
            verdicts={},
            waiting=0,
            withdrawn=0,
            calls=0,
            budget=asked.judge_budget,
            stopped=str(problem),
        )


def refuse_stopped(report: "JudgeReport | None") -> None:
    """Say so if the judge's server went away, or was never there.

    Raises:
        JudgeStopped: telling what was kept.
    """
    if report is not None and report.stopped is not None:
        raise JudgeStopped(
            f"{report.stopped} What the judge said before is kept; run "
            "'flows run attribute --judge URL' again to go on."
        )


def judge_engine(url: str, at_once: int) -> "OpenAIEngine":
    """Return a client of the judge's server, with the key that the environment has for it."""
    from serving.openai_engine import OpenAIEngine

    key = os.environ.get(JUDGE_KEY, "").strip()
    return OpenAIEngine(url, at_once, token_ids=False, key=key or None, option="--judge")


async def _judge(settings: Settings) -> "JudgeReport":
    from traces.attribution.judge import judge_turns

    model = settings.attribution.judge_model
    engine = judge_engine(str(settings.attribution.judge), _AT_ONCE)
    try:
        if model is None:
            listed = await engine.models()
            if not listed:
                raise EngineUnavailable(
                    f"The judge's server at {engine.label!r} lists no model. "
                    "Name one with '--judge-model'."
                )
            model = listed[0]
        return await judge_turns(settings.home, engine, model, settings.attribution.judge_budget)
    finally:
        await engine.close()
