"""Amounts of memory, as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.errors import PolicyError
from offload_runtime.policy import (
    Budget,
    format_bytes,
    parse_budget,
    parse_size,
)

GB = 1024**3


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("6GB", Budget(bytes=6 * GB)),
        (" 512 mib ", Budget(bytes=512 * 1024**2)),
        ("1.5GB", Budget(bytes=3 * GB // 2)),
        ("0B", Budget(bytes=0)),
        ("50%", Budget(percent=50)),
        ("12.5 %", Budget(percent=12.5)),
        ("007 GB", Budget(bytes=7 * GB)),
        ("100.000%", Budget(percent=100)),
    ],
)
def test_budgets_are_read(text: str, budget: Budget) -> None:
    assert parse_budget(text, "vram_budget") == budget


@pytest.mark.parametrize(
    "text",
    [
        "6",
        "6G B",
        "-1GB",
        "GB",
        "1e3MB",
        "101%",
        "100.000000001%",
        "six GB",
        "1" * 400 + "GB",
        "٣GB",
        "",
        "6GB\n6GB",
    ],
)
def test_a_bad_budget_says_where_and_what_is_possible(text: str) -> None:
    with pytest.raises(PolicyError, match=r"^vram_budget: "):
        parse_budget(text, "vram_budget")


LOOK_ALIKES = ["6\u212aB", "6GİB", "6GıB", "6ＧＢ", "６GB", "٣GB", "6G\u200bB", "5٠%", "6\u041cB"]


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_a_letter_or_digit_that_only_looks_right_is_refused(text: str) -> None:
    for parse in (parse_budget, parse_size):
        with pytest.raises(PolicyError, match=r"^here: "):
            parse(text, "here")


@given(st.text(max_size=12) | st.from_regex(r"[0-9]{1,3}[KMGTkmgt]?[iI]?[bB]", fullmatch=True))
def test_any_text_is_a_budget_or_a_policy_error(text: str) -> None:
    try:
        budget = parse_budget(text, "here")
    except PolicyError:
        return
    assert "".join(text.split()).isascii()
    assert parse_budget(budget.spelled(), "here") == budget


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8", "8GB"),
        (" 8 ", "8GB"),
        ("0.5", "0.5GB"),
        ("6144", "6144MB"),
        ("8589934592", "8589934592B"),
        ("8G", "8GB"),
        ("8gigs", "8GB"),
        ("512 m", "512MB"),
        ("6GBB", "6GB"),
        ("1,5 GB", "1.5GB"),
        ("8,5", "8.5GB"),
    ],
)
def test_an_amount_that_is_almost_right_is_offered(text: str, meant: str) -> None:
    for parse in (parse_budget, parse_size):
        with pytest.raises(PolicyError, match=rf"; did you mean {meant}\?$"):
            parse(text, "here")


def test_a_share_is_no_size() -> None:
    assert parse_size("1.5 GB", "--vram") == 3 * GB // 2
    with pytest.raises(PolicyError, match="--vram: “50%” is not an amount of memory"):
        parse_size("50%", "--vram")


@pytest.mark.parametrize(
    ("budget", "of_24"),
    [(Budget(bytes=6 * GB), 6 * GB), (Budget(bytes=48 * GB), 24 * GB), (Budget(percent=25), 6 * GB)],
)
def test_a_budget_is_never_more_than_the_card(budget: Budget, of_24: int) -> None:
    assert budget.resolve(24 * GB) == of_24


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (900, "900 B"),
        (2048, "2 KB"),
        (3 * GB // 2, "1.50 GB"),
        (246 << 20, "246 MB"),
        (2 << 40, "2.00 TB"),
    ],
)
def test_sizes_read_well(count: int, text: str) -> None:
    assert format_bytes(count) == text
