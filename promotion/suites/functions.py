"""Small Python functions (L2), checked by running their tests."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from promotion.suites.task import Partition, Phrasings, Task, assistant


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    parameters: str
    wish: str
    body: str
    tests: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The name without its number or letter: what the function does."""
        return self.name.rsplit("_", 1)[0]


def _number(rng: random.Random) -> _Function:
    k = rng.randint(2, 60)
    kind = rng.randrange(5)
    if kind == 0:
        return _Function(
            f"add_{k}",
            "n",
            f"returns n plus {k}",
            f"return n + {k}",
            (f"assert add_{k}(1) == {1 + k}", f"assert add_{k}(-4) == {k - 4}"),
        )
    if kind == 1:
        return _Function(
            f"times_{k}",
            "n",
            f"returns n times {k}",
            f"return n * {k}",
            (f"assert times_{k}(3) == {3 * k}", f"assert times_{k}(0) == 0"),
        )
    if kind == 2:
        return _Function(
            f"minus_{k}",
            "n",
            f"returns n minus {k}",
            f"return n - {k}",
            (f"assert minus_{k}(100) == {100 - k}", f"assert minus_{k}({k}) == 0"),
        )
    if kind == 3:
        return _Function(
            f"is_multiple_of_{k}",
            "n",
            f"tells whether n is a multiple of {k}",
            f"return n % {k} == 0",
            (
                f"assert is_multiple_of_{k}({3 * k}) is True",
                f"assert is_multiple_of_{k}({3 * k + 1}) is False",
            ),
        )
    return _Function(
        f"above_{k}",
        "n",
        f"tells whether n is greater than {k}",
        f"return n > {k}",
        (f"assert above_{k}({k + 1}) is True", f"assert above_{k}({k}) is False"),
    )


def _list(rng: random.Random) -> _Function:
    k = rng.randint(2, 9)
    kind = rng.randrange(5)
    if kind == 0:
        return _Function(
            f"first_{k}",
            "items",
            f"returns the first {k} elements of a list",
            f"return items[:{k}]",
            (f"assert first_{k}(list(range(20))) == list(range({k}))",),
        )
    if kind == 1:
        return _Function(
            f"last_{k}",
            "items",
            f"returns the last {k} elements of a list",
            f"return items[-{k}:]",
            (f"assert last_{k}(list(range(20))) == list(range({20 - k}, 20))",),
        )
    if kind == 2:
        return _Function(
            f"sum_plus_{k}",
            "items",
            f"returns the sum of a list plus {k}",
            f"return sum(items) + {k}",
            (f"assert sum_plus_{k}([1, 2]) == {3 + k}", f"assert sum_plus_{k}([]) == {k}"),
        )
    if kind == 3:
        return _Function(
            f"longer_than_{k}",
            "words",
            f"returns the words that are longer than {k} letters",
            f"return [w for w in words if len(w) > {k}]",
            (f"assert longer_than_{k}(['a', 'b' * {k + 1}]) == ['b' * {k + 1}]",),
        )
    return _Function(
        f"multiply_by_{k}",
        "items",
        f"returns a list with every element times {k}",
        f"return [x * {k} for x in items]",
        (f"assert multiply_by_{k}([1, 3]) == [{k}, {3 * k}]",),
    )


def _text(rng: random.Random) -> _Function:
    letter = rng.choice("abcdefghijklmnoprstuvw")
    kind = rng.randrange(4)
    if kind == 0:
        return _Function(
            f"count_{letter}",
            "text",
            f"counts the letter {letter} in a text",
            f"return text.count('{letter}')",
            (f"assert count_{letter}('{letter}x{letter}') == 2", f"assert count_{letter}('') == 0"),
        )
    if kind == 1:
        return _Function(
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
        return _Function(
            f"without_{letter}",
            "text",
            f"removes every letter {letter} from a text",
            f"return text.replace('{letter}', '')",
            (f"assert without_{letter}('x{letter}y{letter}') == 'xy'",),
        )
    return _Function(
        f"ends_with_{letter}",
        "text",
        f"tells whether a text ends with {letter}",
        f"return text.endswith('{letter}')",
        (
            f"assert ends_with_{letter}('z{letter}') is True",
            f"assert ends_with_{letter}('{letter}z') is False",
        ),
    )


_FAMILIES: tuple[Callable[[random.Random], _Function], ...] = (_number, _list, _text)
_PHRASINGS = Phrasings(
    seed=("Write a Python function {name}({parameters}) that {wish}.",),
    traffic=(
        "I need a Python function {name}({parameters}). It {wish}.",
        "Code {name}({parameters}) in Python: it {wish}.",
        "Please write {name}({parameters}), a function that {wish}.",
        "Python: define {name}({parameters}), which {wish}.",
    ),
    gate=(
        "Implement {name}({parameters}) in Python so that it {wish}.",
        "Give me the Python code of {name}({parameters}), which {wish}.",
        "How do I write a function {name}({parameters}) that {wish}?",
    ),
)


def make_function_task(rng: random.Random, partition: Partition) -> Task:
    """Make one request for a small function."""
    family = rng.choice(_FAMILIES)
    wanted = family(rng)
    values = {"name": wanted.name, "parameters": wanted.parameters, "wish": wanted.wish}
    template, text = _PHRASINGS.pick(rng, partition, values)
    return Task(
        slot="L2",
        template=f"function-{wanted.kind}-{template}",
        text=text,
        answer=assistant(f"def {wanted.name}({wanted.parameters}):\n    {wanted.body}"),
        reference={"verifier": "python_tests", "tests": list(wanted.tests)},
        keywords=(wanted.name,),
    )
