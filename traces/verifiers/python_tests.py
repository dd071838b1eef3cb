"""Verify Python code by running its tests, both confined (see `traces.verifiers.sandbox`).

The code runs in one process, the tests in another that the code cannot reach: what a function
returns crosses as data and is compared there. There is no network, no environment, an empty
folder, the standard library alone, and limits on time, memory, files and processes; whatever was
started is killed at the end.
"""

import operator
import re
from collections.abc import Iterator, Sequence

from traces.verifiers.check import Check
from traces.verifiers.sandbox.judged import judge
from traces.verifiers.sandbox.limits import WALL_LIMIT_S

_OPENING = re.compile(
    r"(?P<indent>[ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)?)(?P<fence>`{3,}+|~{3,}+)"
    r"[ \t]*+\{?\.?(?P<label>[^\s`{}]*+)[^`]*+"
)
_PYTHON = re.compile(r"i?py(?:thon)?[\d.]*", re.IGNORECASE)


def check_python(
    text: str,
    tests: Sequence[str],
    wall_limit_s: float = WALL_LIMIT_S,
    confinement: str | None = None,
) -> Check:
    """Run `tests` (statements that raise on failure) on what the code in `text` defines.

    `confinement`: `namespaces` or `filter`; by default the best that the machine has.
    """
    together = "\n".join(tests)
    if not together.strip():
        return Check(None, "no tests to run")
    code = extract_code(text)
    if not code.strip():
        return Check(False, "no code")
    if "\0" in code:
        return Check(False, "code holds a NUL byte")
    return judge(code, together, wall_limit_s, confinement)


def extract_code(text: str) -> str:
    """Return the fenced block of a Markdown answer that is the code, or all of it if none is.

    The first that is labelled as Python, else the first without a label, else the first.
    """
    text = text.replace("\r\n", "\n")
    blocks = list(_blocks(text))
    for is_wanted in (_PYTHON.fullmatch, operator.not_, bool):
        for label, code in blocks:
            if is_wanted(label):
                return code
    return text


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield label and content of each fenced block; one that is not closed ends with the text."""
    fence, label, indent, lines = "", "", 0, list[str]()
    for line in text.split("\n"):
        if not fence:
            fence, label, indent = _opened(line)
            lines = []
            continue
        content = line[min(indent, len(line) - len(line.lstrip())) :]
        mark = content.strip()
        if len(mark) >= len(fence) and not mark.strip(fence[0]):
            yield label, "".join(f"{line}\n" for line in lines)
        elif fence == "```" and mark.endswith(fence):
            yield label, "\n".join([*lines, content.rstrip().rstrip("`")])
        else:
            lines.append(content)
            continue
        fence = ""
    if fence:
        yield label, "\n".join(lines)


def _opened(line: str) -> tuple[str, str, int]:
    """Return the fence that a line opens, its label and how far it is indented; "" if none."""
    found = _OPENING.fullmatch(line)
    if found:
        return found["fence"], found["label"], len(found["indent"])
    _, fence, label = line.rpartition("```")  # after words, only if the label says what it is
    return (fence, label, 0) if _PYTHON.fullmatch(label.strip()) else ("", "", 0)
