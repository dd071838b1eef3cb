"""Proves that the phrasings of the task world are whole, and each another.

All files of phrasings as they are; nothing is faked. How alike two are is measured on lower-case
words, each placeholder a single letter, so that what all phrasings of a table share counts little.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from string import Formatter
from typing import get_args

import pytest
from rapidfuzz import fuzz

from promotion.suites import task
from promotion.suites.task import Partition

FILES = sorted((Path(task.__file__).parent / "data" / "phrasings").glob("*.toml"))
TABLES: Mapping[str, Mapping[str, list[str]]] = {
    f"{path.stem}.{name}": table
    for path in FILES
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items()
}

COURTESY = ("please", "thanks")
SIGN = re.compile(r"(?<=\})\s*([-+*/])\s*(?=\{)")
SIGN_WORDS = {"+": " plus ", "-": " minus ", "*": " times ", "/": " by "}
"""Between two values: all that tells a sum from a difference."""
ALIKE = 85.0
"""Of 100: a short word of one phrasing is another, or the words stand in another order."""
LEARNED = 90.0
"""Of 100: a phrasing of the gate that is one of seed or traffic but for spelling or a word."""


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def words(text: str) -> list[str]:
    found = re.findall(r"\{\w+\}|[^\W_]+", text.replace("'", "").lower())
    return [word for word in found if word not in COURTESY]


def same_key(text: str) -> str:
    """What is left of a phrasing without case, punctuation, blanks and courtesy."""
    return "".join(words(text))


def likeness(one: str, other: str) -> float:
    """Of 100, how much of two phrasings is the same, in their own order of words or in any."""
    letters = {
        f"{{{name}}}": chr(ord("A") + n) for n, name in enumerate(sorted(fields(one + other)))
    }
    texts = [" ".join(letters.get(word, word) for word in words(text)) for text in (one, other)]
    return max(fuzz.ratio(*texts), fuzz.token_sort_ratio(*texts))


def repeated(places: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return the phrasings that are the same, each with its place."""
    found: dict[str, list[str]] = {}
    for place, texts in places.items():
        for text in texts:
            found.setdefault(same_key(text), []).append(f"{place}: {text}")
    return [same for same in found.values() if len(same) > 1]


def odd_ones(texts: Sequence[str]) -> list[str]:
    """Return the phrasings with other placeholders than most have."""
    usual, _ = Counter(frozenset(fields(text)) for text in texts).most_common(1)[0]
    return [text for text in texts if fields(text) != usual]


def near_pairs(pairs: Iterable[tuple[str, str]], limit: float) -> list[tuple[str, str]]:
    return [pair for pair in pairs if likeness(*pair) >= limit]


def test_every_table_is_for_the_gate_and_for_users_in_both_their_partitions_or_in_none() -> None:
    assert {"chat", "functions", "household", "interface"} <= {
        name.split(".")[0] for name in TABLES
    }
    for name, table in TABLES.items():
        assert table.keys() <= set(get_args(Partition)), name
        assert table["gate"], name
        assert bool(table.get("seed")) == bool(table.get("traffic")), name


@pytest.mark.parametrize("name", TABLES)
def test_every_phrasing_has_the_placeholders_of_its_table(name: str) -> None:
    texts = [text for partition in TABLES[name].values() for text in partition]

    assert fields(texts[0])
    assert odd_ones(texts) == []


def test_no_request_occurs_twice_in_its_table() -> None:
    for name, table in TABLES.items():
        assert repeated({f"{name}.{partition}": texts for partition, texts in table.items()}) == []


def test_no_request_of_one_table_can_be_of_another() -> None:
    """As values are all that some requests of sums are made of, a sign counts as a word here."""
    places = {
        f"{name}.{partition}": [SIGN.sub(lambda sign: SIGN_WORDS[sign[1]], text) for text in texts]
        for name, table in TABLES.items()
        for partition, texts in table.items()
    }

    assert repeated(places) == []


@pytest.mark.parametrize("name", TABLES)
def test_no_two_phrasings_of_the_gate_are_nearly_alike(name: str) -> None:
    assert near_pairs(combinations(TABLES[name]["gate"], 2), ALIKE) == []


@pytest.mark.parametrize("name", TABLES)
def test_no_phrasing_of_the_gate_is_nearly_one_that_adapters_learned(name: str) -> None:
    learned = [text for p in ("seed", "traffic") for text in TABLES[name].get(p, ())]

    assert near_pairs(product(TABLES[name]["gate"], learned), LEARNED) == []


def test_a_placeholder_too_few_or_too_many_is_odd() -> None:
    whole = ["Play {genre}.", "Put {genre} on.", "Some {genre}!"]

    assert odd_ones([*whole, "Play music.", "Play {genre} by {person}."]) == [
        "Play music.",
        "Play {genre} by {person}.",
    ]


@pytest.mark.parametrize(
    "other",
    [
        "light {state}, in the {room}",
        "Please: light {state} in the {room}!",
        "Light {state} in the {room}, thanks.",
        "PLEASE, light {state}in the {room}. Thanks!",
    ],
)
def test_courtesy_and_punctuation_make_no_other_phrasing(other: str) -> None:
    assert same_key(other) == same_key("Light {state} in the {room}.")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Would you switch {state} the {room} lamp?", "Could you switch {state} the {room} lamp?"),
        ("Music please, {genre}.", "{genre} music, please."),
        ("Light {state} in the {room}!", "Lights {state} in the {room}, thanks."),
        ("I'd like {genre}, if possible.", "Id like {genre} if posible"),
        ("On {day} I have {title}, note it.", "I have {title} on {day}, note it."),
        ("wats the capital of {key}", "What is the capital of {key}?"),
        ("Count {a} and {b} together.", "Put {a} and {b} together."),
    ],
)
def test_one_word_changed_or_moved_is_nearly_alike(one: str, other: str) -> None:
    assert likeness(one, other) >= ALIKE


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The {room} needs {degrees} degrees.", "{degrees} degrees for the {room}, thanks."),
        ("Stream {genre} for me.", "Today it is {genre} for me."),
        ("To buy: {item}.", "Another thing to buy: {item}."),
    ],
)
def test_short_phrasings_of_different_words_are_not_alike(one: str, other: str) -> None:
    assert likeness(one, other) < ALIKE
