"""COMPATIBILITY.md says what the handlers say."""

from pathlib import Path

from headrace.wire.api import handlers_in
from headrace.wire.compatibility import SHARED, render

PAGE = Path(__file__).parents[3] / "COMPATIBILITY.md"
PACKAGES = [SHARED, "headrace.broker.handlers", "headrace.coordinator.handlers"]


def test_the_page_is_up_to_date() -> None:
    found = render(handler for package in PACKAGES for handler in handlers_in(package))
    assert PAGE.read_text() == found, "run `make docs`"
