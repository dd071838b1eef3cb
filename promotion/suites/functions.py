"""Small Python functions (L2), checked by running their tests."""

import random
import textwrap
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from promotion.suites.task import Partition, Task, assistant, read_phrasings


@dataclass(frozen=True, slots=True)
class Function:
    """What a request asks for."""

    name: str
    parameters: str
    wish: str
    """All that it does, in words that go on after `it`."""
    body: str
    tests: tuple[str, ...]
    named_by: str = ""
    """The kind, where it is not the name without its number or letter."""

    @property
    def kind(self) -> str:
        """What the function does, whatever its number or letter."""
        return self.named_by or self.name.rsplit("_", 1)[0]

    @property
    def code(self) -> str:
        """The right definition."""
        return f"def {self.name}({self.parameters}):\n{textwrap.indent(self.body, '    ')}"


def _number(rng: random.Random) -> Function:
    k = rng.randint(2, 60)
    kind = rng.randrange(5)
    if kind == 0:
        return Function(
            f"add_{k}",
            "n",
            f"returns n plus {k}",
            f"return n + {k}",
            (f"assert add_{k}(1) == {1 + k}", f"assert add_{k}(-4) == {k - 4}"),
        )
    if kind == 1:
        return Function(
            f"times_{k}",
            "n",
            f"returns n times {k}",
            f"return n * {k}",
            (f"assert times_{k}(3) == {3 * k}", f"assert times_{k}(0) == 0"),
        )
    if kind == 2:
        return Function(
            f"minus_{k}",
            "n",
            f"returns n minus {k}",
            f"return n - {k}",
            (f"assert minus_{k}(100) == {100 - k}", f"assert minus_{k}({k}) == 0"),
        )
    if kind == 3:
        return Function(
            f"is_multiple_of_{k}",
            "n",
            f"tells whether n is a multiple of {k}",
            f"return n % {k} == 0",
            (
                f"assert is_multiple_of_{k}({3 * k}) is True",
                f"assert is_multiple_of_{k}({3 * k + 1}) is False",
            ),
        )
    return Function(
        f"above_{k}",
        "n",
        f"tells whether n is greater than {k}",
        f"return n > {k}",
        (f"assert above_{k}({k + 1}) is True", f"assert above_{k}({k}) is False"),
    )


def _list(rng: random.Random) -> Function:
    k = rng.randint(2, 9)
    kind = rng.randrange(5)
    if kind == 0:
        return Function(
            f"first_{k}",
            "items",
            f"returns the first {k} elements of a list",
            f"return items[:{k}]",
            (f"assert first_{k}(list(range(20))) == list(range({k}))",),
        )
    if kind == 1:
        return Function(
            f"last_{k}",
            "items",
            f"returns the last {k} elements of a list",
            f"return items[-{k}:]",
            (f"assert last_{k}(list(range(20))) == list(range({20 - k}, 20))",),
        )
    if kind == 2:
        return Function(
            f"sum_plus_{k}",
            "items",
            f"returns the sum of a list plus {k}",
            f"return sum(items) + {k}",
            (f"assert sum_plus_{k}([1, 2]) == {3 + k}", f"assert sum_plus_{k}([]) == {k}"),
        )
    if kind == 3:
        return Function(
            f"longer_than_{k}",
            "words",
            f"returns the words that are longer than {k} letters",
            f"return [w for w in words if len(w) > {k}]",
            (f"assert longer_than_{k}(['a', 'b' * {k + 1}]) == ['b' * {k + 1}]",),
        )
    return Function(
        f"multiply_by_{k}",
        "items",
        f"returns a list with every element times {k}",
        f"return [x * {k} for x in items]",
        (f"assert multiply_by_{k}([1, 3]) == [{k}, {3 * k}]",),
    )


def _text(rng: random.Random) -> Function:
    letter = rng.choice("abcdefghijklmnoprstuvw")
    kind = rng.randrange(4)
    if kind == 0:
        return Function(
            f"count_{letter}",
            "text",
            f"counts the letter {letter} in a text",
            f"return text.count('{letter}')",
            (f"assert count_{letter}('{letter}x{letter}') == 2", f"assert count_{letter}('') == 0"),
        )
    if kind == 1:
        return Function(
            f"starts_with_{letter}",
            "text",
            f"tells whether a text starts with {letter}",
            f"return text.startswith('{letter}')",
            (
                f"assert starts_with_{letter}('{letter}z') is True",
                f"assert starts_with_{letter}('z{letter}') is False",
            ),
        )
    if kind == 2:
        return Function(
            f"without_{letter}",
            "text",
            f"removes every letter {letter} from a text",
            f"return text.replace('{letter}', '')",
            (f"assert without_{letter}('x{letter}y{letter}') == 'xy'",),
        )
    return Function(
        f"ends_with_{letter}",
        "text",
        f"tells whether a text ends with {letter}",
        f"return text.endswith('{letter}')",
        (
            f"assert ends_with_{letter}('z{letter}') is True",
            f"assert ends_with_{letter}('{letter}z') is False",
        ),
    )


def functions_of(name: str, table: Mapping[str, Any]) -> list[Function]:
    """Return the functions of one kind of `KINDS`: one for each row of its values."""
    columns: Mapping[str, list[Any]] = table.get("values", {"k": [""]})
    functions = []
    for row in zip(*columns.values(), strict=True):
        values = dict(zip(columns, row, strict=True))
        values["name"] = Template(name).substitute(values)
        parameters, wish, body, tests = (
            Template(table[part]).substitute(values).strip()
            for part in ("parameters", "wish", "body", "tests")
        )
        functions.append(
            Function(
                values["name"],
                parameters,
                wish,
                body,
                tuple(tests.splitlines()),
                name.removesuffix("_$k"),
            )
        )
    return functions


KINDS: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    (Path(__file__).with_name("data") / "functions.toml").read_text(encoding="utf-8")
)
"""Kinds that only the gate asks for, by the name of their functions."""
_KINDS = [functions_of(name, table) for name, table in KINDS.items()]


def _of_the_gate(rng: random.Random) -> Function:
    return rng.choice(rng.choice(_KINDS))


_FAMILIES: tuple[Callable[[random.Random], Function], ...] = (_number, _list, _text)
_GATE_FAMILIES = (*_FAMILIES, _of_the_gate)
_GATE_WEIGHTS = (5, 5, 4, len(_KINDS))
"""How many kinds each has, so that all are asked for as often."""
_PHRASINGS = read_phrasings("functions")["function"]


def make_function_task(rng: random.Random, partition: Partition) -> Task:
    """Make one request for a small function."""
    if partition == "gate":
        (family,) = rng.choices(_GATE_FAMILIES, _GATE_WEIGHTS)
    else:
        family = rng.choice(_FAMILIES)
    wanted = family(rng)
    values = {"name": wanted.name, "parameters": wanted.parameters, "wish": wanted.wish}
    template, text = _PHRASINGS.pick(rng, partition, values)
    return Task(
        slot="L2",
        template=f"function-{wanted.kind}-{template}",
        text=text,
        answer=assistant(wanted.code),
        reference={"verifier": "python_tests", "tests": list(wanted.tests)},
        keywords=(wanted.name,),
    )
