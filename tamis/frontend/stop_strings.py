"""Stop strings over streamed text, in time linear in it, whatever the pieces it comes in."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds the first of several strings in a stream and holds back only what may still become one.

    The first is the one that *ends* first, and of those the longest; that choice does not depend on how the text is
    cut into pieces. At most `len(stop) - 1` characters are held back (Knuth, Morris and Pratt's automaton per string).
    """

    def __init__(self, stops: Sequence[str]) -> None:
        # Longest first, so that of two strings that end together the longer is found.
        self._stops = sorted(stops, key=len, reverse=True)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that may be shown now, and the stop string if it has come; the text then ends before it."""
        if not self._stops:
            return text, None
        window = self._held + text
        for at in range(len(self._held), len(window)):
            stop = self._advance(window[at])
            if stop is not None:
                self._held = ""
                return window[: at + 1 - len(stop)], stop
        keep = max(self._matched)
        self._held = window[len(window) - keep :]
        return window[: len(window) - keep], None

    def finish(self) -> str:
        """What was held back, once no more text will come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        for i, stop in enumerate(self._stops):
            matched = self._matched[i]
            while matched and stop[matched] != char:
                matched = self._borders[i][matched - 1]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop):
                return stop
            self._matched[i] = matched
        return None


def _borders(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = borders[length - 1]
        if stop[i] == stop[length]:
            length += 1
        borders[i] = length
    return borders
