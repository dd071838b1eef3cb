"""BFCL, the Berkeley Function Calling Leaderboard (L1): its items, graded by its own checker.

Items and verdicts come from `bfcl-eval` (Apache-2.0, version 4 of the data) in an environment of
its own, `infra/install_environment.sh`. Taken are the categories of one turn with Python types: one
function, several to choose from, several calls at once, and none that fits; the `live` ones were
asked by users. Left out are Java and JavaScript (other types of arguments) and what needs a web
search, a memory or a file system to act on.

One function list is one cluster: requests for it are not independent.
"""

import functools
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from promotion.suites.external.request import asked, outside_item
from promotion.suites.external.worker import START_LIMIT_S, Worker, WorkerFailed
from promotion.suites.suite import Item, Suite
from serving.records import Message, content_id
from serving.slots import Profile
from traces.verifiers.check import Check

CATEGORIES = (
    "simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple",
    "live_irrelevance", "live_relevance",
)  # fmt: skip
MAX_ANSWER_TOKENS = 192
MAX_REQUEST_CHARS = 12_000
"""A few requests with dozens of functions are longer and do not fit a window of 8,192 tokens."""

_SCRIPT = Path(__file__).with_name("bfcl_worker.py")


def bfcl_suite(profile: Profile, slot: str, venv: Path, limit_s: float) -> Suite:
    """Build the suite, one item of each category in turn; `limit_s` is for grading one.

    Raises:
        EnvironmentMissing: if bfcl-eval is not installed in `venv`.
        WorkerFailed: if it cannot be used.
    """
    worker, version, found = _load(venv)
    by_category: dict[str, list[Item]] = {category: [] for category in CATEGORIES}
    for raw in found:
        item = _item(profile, slot, worker, limit_s, version, raw)
        if sum(len(m.content) for m in item.messages) + len(str(item.tools)) <= MAX_REQUEST_CHARS:
            by_category[raw["category"]].append(item)
    turns = zip_longest(*by_category.values())
    items = tuple(item for turn in turns for item in turn if item is not None)
    return Suite("bfcl", slot, items)


def bfcl_version(venv: Path) -> str:
    """Return the name and version of the checker."""
    return f"bfcl-eval {_load(venv)[1]}"


def as_bfcl(answer: Message) -> list[dict[str, str]] | str:
    """Return an answer as bfcl-eval keeps it: calls as name and arguments text, else its text."""
    if not answer.tool_calls:
        return answer.content
    return [{call.name: call.arguments} for call in answer.tool_calls]


@functools.cache
def _load(venv: Path) -> tuple[Worker, str, list[dict[str, Any]]]:
    # The home is where the package puts folders for results; a key is asked for by a client of
    # OpenAI that it makes and that nothing here calls.
    environment = {"BFCL_PROJECT_ROOT": ".", "OPENAI_API_KEY": "unused"}
    worker = Worker(venv, _SCRIPT, environment, "make bfcl-install")
    reply = worker.ask({"do": "items", "categories": CATEGORIES}, START_LIMIT_S)
    return worker, reply["version"], reply["items"]


def _item(
    profile: Profile,
    slot: str,
    worker: Worker,
    limit_s: float,
    version: str,
    raw: Mapping[str, Any],
) -> Item:
    names = sorted(tool["function"]["name"] for tool in raw["tools"])
    return outside_item(
        cluster=f"bfcl-{content_id(names)[7:19]}",
        messages=asked(profile, slot, [Message.from_openai(m) for m in raw["messages"]]),
        tools=tuple(raw["tools"]),
        reference=["bfcl-eval", version, raw["id"], raw["answer"]],
        max_tokens=MAX_ANSWER_TOKENS,
        check=functools.partial(_check, worker=worker, limit_s=limit_s, name=raw["id"]),
    )


def _check(answer: Message, *, worker: Worker, limit_s: float, name: str) -> Check:
    try:
        said = worker.ask({"do": "grade", "id": name, "result": as_bfcl(answer)}, limit_s)
    except WorkerFailed as error:
        return Check(None, f"{name}: {error}")
    if said["valid"]:
        return Check(True, f"{name}: valid")
    return Check(False, f"{name}: {said['error_type'] or 'invalid'}: {said['error'][:160]}")
