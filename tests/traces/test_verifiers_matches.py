"""Proves what exact and numeric match let pass and what not. Nothing is faked."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.verifiers.check import Check
from traces.verifiers.exact import check_exact
from traces.verifiers.numeric import check_numeric, number_of


@pytest.mark.parametrize(
    "text", ["New York", " new  york\n", "NEW YORK.", "Ｎｅｗ York", "new\u00a0york", "NYC"]
)
def test_an_accepted_text_passes(text: str) -> None:
    assert check_exact(text, ("NYC", "New York")) == Check(True, "the expected text")


@pytest.mark.parametrize(
    "text", ["NewYork", "New York!", "In New York", "New York..", "New", "Nev York"]
)
def test_another_text_fails(text: str) -> None:
    assert check_exact(text, ("New York",)).passed is False


@pytest.mark.parametrize(
    ("text", "accepted"),
    [("北京。", "北京"), ("北京", "北京。"), ("\u00bd", "1/2"), ("1\u00bd", "1 1/2"), 
     ("10\u00b2", "10^2"),
     ("H\u2082O", "H2O"), ("2\u207b\u00b3", "2^-3"), ("m\u00b2", "m2")],
)  # fmt: skip
def test_one_text_in_other_characters_is_the_same(text: str, accepted: str) -> None:
    assert check_exact(text, (accepted,)).passed


@pytest.mark.parametrize(
    ("text", "accepted"),
    [("10\u00b2", "102"), ("1\u00bd", "11/2"), ("北京。。", "北京"), ("10\u207b\u00b2", "10-2")],
)
def test_what_unicode_would_run_together_is_another_text(text: str, accepted: str) -> None:
    assert check_exact(text, (accepted,)).passed is False


@pytest.mark.parametrize("text", ["", " \n"])
def test_silence_is_never_right(text: str) -> None:
    assert check_exact(text, ("",)) == Check(False, "the answer is empty")
    assert check_numeric(text, 0) == Check(False, "no number in the answer")


def test_nothing_to_compare_with_finds_nothing() -> None:
    assert check_exact("x", ()).passed is None


NUMBERS = {
    "42": "42",
    "The answer is 42.": "42",
    "12 and not 7": "7",
    "7 - 3 = 4": "4",
    "x=-4": "-4",
    "\u22127": "-7",
    "+7": "7",
    "1,234.5 km": "1234.5",
    "1'000'000": "1000000",
    "5\u00a0000": "5000",
    "5\u2009000\u202f000": "5000000",
    "$5.00": "5",
    "-$5": "-5",
    "50%": "50",
    "**12**": "12",
    "(12)": "12",
    "20kg": "20",
    "the 2nd": "2",
    ".5": "0.5",
    "5.": "5",
    "1.5e3": "1500",
    "1.5E-3": "0.0015",
    "1.5 x 10^3": "1500",
    "2 \u00d7 10^{-3}": "0.002",
    "3/4": "3/4",
    "\u0663": "3",
    r"\boxed{12} and then 7": "12",
    r"\boxed{1} \boxed{1,000}": "1000",
    r"\boxed{}, so 3": "3",
    r"\boxed{\boxed{5}}": "5",
    r"\boxed{x = 5}": "5",
    r"\boxed{\frac{3}{4}}": "3/4",
    r"\boxed{-\frac{1}{2}}": "-1/2",
    r"\boxed{- \dfrac12}": "-1/2",
    r"\boxed{\tfrac{-3}{4}}": "-3/4",
    r"\boxed{\frac{1}{2} = 0.5}": "1/2",
    r"$\frac{1}{2}$": "1/2",
    r"\boxed{1{,}234}": "1234",
    r"\boxed{10{,}\!000}": "10000",
    r"\boxed{1\,000}": "1000",
    r"\boxed{12\text{ cm}^{2}}": "12",
    r"\boxed{12 \text{ m s}^{-1}}": "12",
    r"\boxed{\textbf{12}}": "12",
    r"\boxed{\$5.00}": "5",
    r"\boxed{50\%}": "50",
    r"\boxed{90^\circ}": "90",
    r"\boxed{5^{\text{th}}}": "5",
    r"\boxed{6 \times 10^{3}}": "6000",
    r"\(12\)": "12",
    r"\begin{aligned} x_{1} &= 5 \\ &\approx 12 \end{aligned}": "12",
    "5*10**3": "5000",
    "12 cm^2": "12",
    "20cm\u00b2": "20",
    "\u00bd": "1/2",
    "9 + 7 = 16.": "16",
    "3 1/2 = 3.5": "7/2",
    "x = - 7": "-7",
    "- 7": "7",
    '{"answer": 12}': "12",
    "答案是12。": "12",
    "3个苹果和4个梨": "4",
    "共5千米": "5",
    "5 #### 1,000\n": "1000",
    "5 #### none": "5",
}
NONE = ("", "none", "H2O", "v2", "1a2b", "1_000", "2024-05-01", "10:30", "1.2.3", "5-7",
        "NaN inf", "\u00b2", "9" * 401, "1e99999", "2024年5月1日", "3点20分")  # fmt: skip
UNREAD = (
    "3 1/2", "1\u00bd", "1 000 000", "1,23", "1,2345", "12,34,567", "2^10", "10\u00b2", "1/0",
    "12 - 7", "7 + 5", "7 x 5", "7 plus 5", "a + 12", "12 + x", "2x", "2^n", "3(4)", "GPT-4",
    "sqrt(16)", "12k", "$12 million", "3万", r"2\pi", r"\sqrt{2}", r"\frac{a}{2}",
    r"\frac{\sqrt{3}}{2}", r"3\frac{1}{2}", r"3$\frac{1}{2}$", r"\frac{1}{2}\pi",
    r"\left(\frac{1}{2}\right)^2", r"12 \pm 3", r"C:\Users\12", r"\{1, 2\}",
)  # fmt: skip
BOXED = ("1,2,3", "(1, 2)", "1 or 2", "2+3=5", "5-7", "12-x", "12!", "7:8 and 9 - x", r"\boxed{")


@pytest.mark.parametrize(("text", "number"), NUMBERS.items())
def test_an_answer_gives_its_number(text: str, number: str) -> None:
    assert number_of(text) == Fraction(number)


@pytest.mark.parametrize("text", NONE)
def test_what_only_looks_like_a_number_is_none(text: str) -> None:
    assert number_of(text) is None
    assert number_of(f"7 apples, {text}") == 7


@pytest.mark.parametrize("text", UNREAD)
def test_no_part_of_what_is_not_read_is_the_number(text: str) -> None:
    assert number_of(text) == number_of(f"7 apples; {text}") == "unread"
    assert number_of(f"{text}; that is 7") == 7
    assert number_of(rf"so \boxed{{{text}}}") == "unread"


@pytest.mark.parametrize("text", BOXED)
def test_a_box_gives_one_number_or_none_is_read(text: str) -> None:
    assert check_numeric(rf"It is 7: \boxed{{{text}}}", 7).passed is None


@pytest.mark.parametrize("text", [r"\boxed{x}", r"\boxed{\text{No solution}}, for 3 > 2"])
def test_a_box_without_a_number_gives_none(text: str) -> None:
    assert check_numeric(text, 2) == Check(False, "no number in the answer")


@pytest.mark.parametrize(
    ("text", "value", "tolerance", "absolute", "passed"),
    [
        ("100", 100, 0, 0, True),
        ("0.1", 0.1, 0, 0, True),
        ("0.30000000000000004", 0.1 + 0.2, 0, 0, True),
        ("101", 100, 0.01, 0, True),
        ("99", 100, 0.01, 0, True),
        ("101.1", 100, 0.01, 0, False),
        ("-101", -100, 0.01, 0, True),
        ("-100", 100, 0.01, 0, False),
        ("0.4", 0, 0.5, 0, False),
        ("0.4", 0, 0, 0.5, True),
        ("0.6", 0, 0, 0.5, False),
        ("1e9999", 1e308, 0.5, 0, False),
        (str(2**60), 2**60 + 1, 0, 0, False),
        (str(2**60 + 1), 2**60 + 1, 0, 0, True),
    ],
)
def test_tolerance_is_relative_or_absolute(
    text: str, value: float, tolerance: float, absolute: float, passed: bool
) -> None:
    assert check_numeric(text, value, tolerance, absolute).passed is passed


def test_the_usual_tolerance_is_a_millionth() -> None:
    assert check_numeric("3.141593", math.pi).passed
    assert not check_numeric("3.1416", math.pi).passed


@pytest.mark.parametrize(
    ("value", "tolerance", "absolute"),
    [(math.nan, 0, 0), (math.inf, 0, 0), (1, -1, 0), (1, math.inf, 0), (1, 0, math.nan)],
)
def test_a_reference_that_is_no_number_finds_nothing(
    value: float, tolerance: float, absolute: float
) -> None:
    assert check_numeric("1", value, tolerance, absolute).passed is None


@settings(deadline=None)
@given(st.text(alphabet="0123456789.,'-+eE/^x*$ \u00a0\\boxed{}#", max_size=40))
def test_no_text_is_too_odd(text: str) -> None:
    assert check_numeric(text, 1).detail
    assert check_exact(text, ("1",)).passed in (True, False)


@pytest.mark.parametrize(
    "part",
    ["1,", "9", "-", "1 ", "1^", "1/", r"\boxed{", "1e", "####", r"\frac12", r"\pi{", r"\text{",
     "1年", "m^2", "{", "\u00bd"],
)  # fmt: skip
def test_a_long_answer_is_read_in_one_go(part: str) -> None:
    # Read again from every character, it would take minutes.
    assert not check_numeric(part * 100_000, 0.25).passed
