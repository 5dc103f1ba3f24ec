from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.frontend.stop_strings import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    watcher = StopStrings(stops)
    shown = []
    for piece in pieces:
        text, stop = watcher.push(piece)
        shown.append(text)
        if stop is not None:
            return shown, stop
    return [*shown, watcher.finish()], None


def whole(stops: list[str], text: str) -> tuple[str, str | None]:
    """The slow rule: the shortest prefix that ends in a stop string, less the longest one it ends in."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(max_examples=100)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=4),
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
)
def test_equals_the_slow_rule_however_the_text_is_cut(stops: list[str], pieces: list[str]) -> None:
    shown, stop = run(stops, pieces)
    assert ("".join(shown), stop) == whole(stops, "".join(pieces))


@settings(max_examples=100)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
)
def test_never_holds_back_more_than_the_longest_stop_less_one(stops: list[str], pieces: list[str]) -> None:
    watcher = StopStrings(stops)
    fed = shown = 0
    for piece in pieces:
        text, stop = watcher.push(piece)
        if stop is not None:
            break
        fed, shown = fed + len(piece), shown + len(text)
        assert fed - shown <= max(map(len, stops)) - 1


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        pytest.param(["abc", "E", "ND", "x"], ["abc", "", ""], id="split-over-pieces"),
        pytest.param(["E", "xEND"], ["", "Ex"], id="a-false-start-is-released"),
        pytest.param(["EN", "END"], ["", "EN"], id="a-restart-inside-a-false-start"),
        pytest.param(["END"], [""], id="alone"),
    ],
)
def test_text_before_the_stop_string(pieces: list[str], shown: list[str]) -> None:
    assert run(["END"], pieces) == (shown, "END")


def test_what_is_held_at_the_end_is_shown() -> None:
    assert run(["END"], ["abE"]) == (["ab", "E"], None)


def test_time_is_linear_for_a_stop_string_that_keeps_almost_matching() -> None:
    stop = "a" * 2000 + "b"
    watcher = StopStrings([stop])
    start = time.perf_counter()
    for _ in range(20_000):
        watcher.push("a")
    # Comparing the whole string at each character would take minutes.
    assert time.perf_counter() - start < 5
