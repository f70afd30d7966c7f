"""Handlers: how they are found, bound and described."""

from __future__ import annotations

import pytest

from headrace.wire.api import Api, handlers_in, handles
from headrace.wire.compatibility import render
from headrace.wire.protocol import ApiKey


@handles(ApiKey.PRODUCE, versions=(3, 13), advertise_from=0)
def produce(service: object, context: object, request: object) -> None:
    return None


def test_a_key_has_one_handler() -> None:
    api = Api(None, [produce.__handles__])  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="PRODUCE has two handlers"):
        api.register(None, [produce.__handles__])  # type: ignore[attr-defined]


def test_what_is_advertised_may_begin_lower_than_what_is_served() -> None:
    api = Api(None, [produce.__handles__])  # type: ignore[attr-defined]
    assert api.advertised()[0] == {"api_key": 0, "min_version": 0, "max_version": 13}


def test_the_page_has_a_row_and_a_section_for_each() -> None:
    page = render([*handlers_in("headrace.wire.handlers"), produce.__handles__])  # type: ignore[attr-defined]
    assert "| 0 | Handlers | 3–13 (advertised from 0) |" in page
    assert "| 18 | ApiVersions | 0–4 | all | which APIs and versions this listener serves |" in page
    assert "## ApiVersions" in page
