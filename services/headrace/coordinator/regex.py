"""Topic patterns of members (KIP-848), matched in time linear in the name, whatever the pattern.

Kafka uses RE2, which has no backtracking and therefore no back-references or look-around. Python's `re` backtracks: one
member with `(a+)+b` could stop a coordinator. So Python's parser reads the pattern, and a small automaton matches it.
Topic names use 65 characters only, which makes every character class a set of those and the automaton cheap.
"""

from __future__ import annotations

import re
import string
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from headrace.errors import ErrorCode, KafkaError

_ALPHABET = string.ascii_letters + string.digits + "._-"
_ALL = frozenset(_ALPHABET)
_MAX_LENGTH = 4096
_MAX_STATES = 4096
_MAX_CACHED = 2048
_CATEGORIES = {
    op.CATEGORY_DIGIT: frozenset(string.digits),
    op.CATEGORY_WORD: _ALL - frozenset(".-"),
    op.CATEGORY_SPACE: frozenset[str](),
}
_NEGATED = {
    op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT,
    op.CATEGORY_NOT_WORD: op.CATEGORY_WORD,
    op.CATEGORY_NOT_SPACE: op.CATEGORY_SPACE,
}
_START = (op.AT_BEGINNING, op.AT_BEGINNING_STRING)
_END = (op.AT_END, op.AT_END_STRING)


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, why)


class TopicPattern:
    """A pattern that has to match the whole of a topic's name.

    >>> pattern = TopicPattern("orders-(eu|us)[0-9]*")
    >>> pattern.matches("orders-eu12"), pattern.matches("my-orders-eu")
    (True, False)
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > _MAX_LENGTH:
            raise _invalid(f"a pattern of {len(pattern)} characters is too long, give at most {_MAX_LENGTH}")
        try:
            tree = _parser.parse(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise _invalid(f"{pattern!r} is not a regular expression: {error}") from None
        self._fold = bool(tree.state.flags & re.IGNORECASE)
        # State i goes to `_next[i]` on a character of `_on[i]`, and to all of `_free[i]` on none.
        self._on: list[frozenset[str]] = []
        self._next: list[int] = []
        self._free: list[list[int]] = []
        self._at_start: set[int] = set()
        self._at_end: set[int] = set()
        self._accept = self._state()
        try:
            start = self._sequence(tree, self._accept)
        except RecursionError:
            raise _invalid("the pattern is nested too deeply") from None
        self._first = self._closure([start], at_start=True)
        self._cache: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        states = self._first
        cache = self._cache
        for char in name:
            key = (states, char)
            after = cache.get(key)
            if after is None:
                if len(cache) >= _MAX_CACHED:
                    cache.clear()
                after = self._closure([self._next[s] for s in states if char in self._on[s]], at_start=False)
                cache[key] = after
            if not after:
                return False
            states = after
        return self._accept in self._closure(list(states), at_start=not name, at_end=True)

    # The automaton, built from the end of the pattern to its start

    def _state(self, on: frozenset[str] = frozenset(), to: int = -1, free: list[int] | None = None) -> int:
        if len(self._on) >= _MAX_STATES:
            raise _invalid("the pattern is too large: use fewer or smaller repeat counts")
        self._on.append(on)
        self._next.append(to)
        self._free.append(free if free is not None else [])
        return len(self._on) - 1

    def _sequence(self, nodes: Any, to: int) -> int:
        for kind, value in reversed(list(nodes)):
            to = self._node(kind, value, to)
        return to

    def _node(self, kind: Any, value: Any, to: int) -> int:
        if kind in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            return self._state(self._chars(kind, value), to)
        if kind is op.BRANCH:
            return self._state(free=[self._sequence(branch, to) for branch in value[1]])
        if kind is op.SUBPATTERN:
            _, add, remove, nodes = value
            if add or remove:
                raise _invalid("flags inside a group are not supported, put (?i) at the start")
            return self._sequence(nodes, to)
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            least, most, nodes = value
            return self._repeat(least, most, nodes, to)
        if kind is op.AT and value in _START:
            at = self._state(free=[to])
            self._at_start.add(at)
            return at
        if kind is op.AT and value in _END:
            at = self._state(free=[to])
            self._at_end.add(at)
            return at
        raise _invalid(f"{str(kind).lower()} is not supported: no look-around, back-references or word boundaries")

    def _repeat(self, least: int, most: int, nodes: Any, to: int) -> int:
        if most == op.MAXREPEAT:
            loop = self._state()
            self._free[loop] = [to, self._sequence(nodes, loop)]
            to = loop
        else:
            done = to
            for _ in range(most - least):
                to = self._state(free=[done, self._sequence(nodes, to)])
        for _ in range(least):
            to = self._sequence(nodes, to)
        return to

    def _chars(self, kind: Any, value: Any) -> frozenset[str]:
        if kind is op.ANY:
            return _ALL
        if kind is op.LITERAL:
            return self._folded(_ALL & {chr(value)} if value < 128 else frozenset())
        if kind is op.NOT_LITERAL:
            return _ALL - self._folded(frozenset(chr(value)))
        chars: frozenset[str] = frozenset()
        negate = False
        for item, argument in value:
            if item is op.NEGATE:
                negate = True
            elif item is op.LITERAL:
                chars |= {chr(argument)}
            elif item is op.RANGE:
                low, high = argument
                chars |= {char for char in _ALPHABET if low <= ord(char) <= high}
            elif argument in _NEGATED:
                chars |= _ALL - _CATEGORIES[_NEGATED[argument]]
            else:
                chars |= _CATEGORIES[argument]
        chars = self._folded(chars)
        return _ALL - chars if negate else _ALL & chars

    def _folded(self, chars: frozenset[str]) -> frozenset[str]:
        return chars | {c.swapcase() for c in chars if c.isascii()} if self._fold else chars

    def _closure(self, states: list[int], *, at_start: bool, at_end: bool = False) -> frozenset[int]:
        seen: set[int] = set()
        work = list(states)
        while work:
            state = work.pop()
            if state in seen:
                continue
            seen.add(state)
            if (state in self._at_start and not at_start) or (state in self._at_end and not at_end):
                continue
            work += self._free[state]
        return frozenset(seen)


@lru_cache(maxsize=1024)
def topic_pattern(pattern: str) -> TopicPattern:
    """The compiled pattern; raises INVALID_REGULAR_EXPRESSION."""
    return TopicPattern(pattern)
