"""Incremental fetch sessions: epochs, forgetting, bounded memory."""

import random

import pytest

from headrace.broker.fetch_session import NO_SESSION, Session, Sessions
from headrace.broker.reader import CONSUMER, Key, Wanted
from headrace.errors import ErrorCode, KafkaError

A: Key = ("a", 0)
B: Key = ("b", 0)


def open_(sessions: Sessions, session_id: int, epoch: int, wanted: dict[Key, Wanted], **more) -> Session:
    settings = {"forgotten": (), "by_id": False, "replica_id": CONSUMER, "broker_epoch": -1, "now": 0.0} | more
    return sessions.open(session_id, epoch, wanted.items(), **settings)


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(slots=2, eviction_seconds=120, random=random.Random(1))


def test_a_session_remembers_what_was_named_and_forgets_what_it_is_told_to(sessions: Sessions) -> None:
    session = open_(sessions, 0, 0, {A: Wanted(1, 10), B: Wanted(2, 10)})
    assert list(session.wanted) == [A, B]
    open_(sessions, session.id, 1, {A: Wanted(5, 10)})
    assert session.wanted == {A: Wanted(5, 10), B: Wanted(2, 10)}
    open_(sessions, session.id, 2, {}, forgotten=[B])
    assert session.wanted == {A: Wanted(5, 10)}


def test_a_repeated_or_skipped_request_is_noticed(sessions: Sessions) -> None:
    session = open_(sessions, 0, 0, {A: Wanted(1, 10)})
    open_(sessions, session.id, 1, {})
    for epoch in (1, 3):
        with pytest.raises(KafkaError) as caught:
            open_(sessions, session.id, epoch, {})
        assert caught.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_the_epoch_wraps_past_the_largest_number(sessions: Sessions) -> None:
    session = open_(sessions, 0, 0, {A: Wanted(1, 10)})
    session.epoch = 0x7FFFFFFF
    open_(sessions, session.id, 0x7FFFFFFF, {})
    assert session.epoch == 1


def test_an_unknown_session_and_a_change_of_naming_are_refused(sessions: Sessions) -> None:
    session = open_(sessions, 0, 0, {A: Wanted(1, 10)})
    with pytest.raises(KafkaError) as caught:
        open_(sessions, session.id + 1, 1, {})
    assert caught.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    with pytest.raises(KafkaError) as caught:
        open_(sessions, session.id, 1, {}, by_id=True)
    assert caught.value.code is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_the_final_epoch_closes_the_session(sessions: Sessions) -> None:
    session = open_(sessions, 0, 0, {A: Wanted(1, 10)})
    assert open_(sessions, session.id, -1, {A: Wanted(1, 10)}).id == NO_SESSION
    assert len(sessions) == 0


def test_a_full_cache_gives_no_session_until_one_is_old(sessions: Sessions) -> None:
    first = open_(sessions, 0, 0, {A: Wanted(1, 10)})
    open_(sessions, 0, 0, {A: Wanted(1, 10)}, now=60.0)
    assert open_(sessions, 0, 0, {A: Wanted(1, 10)}, now=100.0).id == NO_SESSION
    assert open_(sessions, 0, 0, {A: Wanted(1, 10)}, now=121.0).id != NO_SESSION
    assert len(sessions) == 2
    with pytest.raises(KafkaError):
        open_(sessions, first.id, 1, {})


def test_a_follower_takes_a_consumers_place_and_never_loses_its_own(sessions: Sessions) -> None:
    open_(sessions, 0, 0, {}, now=1.0)
    open_(sessions, 0, 0, {}, now=2.0)
    assert open_(sessions, 0, 0, {}, replica_id=1, now=3.0).id != NO_SESSION
    assert open_(sessions, 0, 0, {}, replica_id=2, now=3.0).id != NO_SESSION
    assert open_(sessions, 0, 0, {}, now=1000.0).id == NO_SESSION, "both slots are followers'"


def test_only_news_is_sent() -> None:
    session = Session(1, [(A, Wanted(0, 10))])
    place = session.places[A]
    assert session.is_news(place, has_data=False, failed=False, high_watermark=5, log_start_offset=0)
    assert not session.is_news(place, has_data=False, failed=False, high_watermark=5, log_start_offset=0)
    assert session.is_news(place, has_data=True, failed=False, high_watermark=5, log_start_offset=0)
    assert session.is_news(place, has_data=False, failed=False, high_watermark=6, log_start_offset=0)
    assert session.is_news(place, has_data=False, failed=True, high_watermark=6, log_start_offset=0)
    assert session.is_news(place, has_data=False, failed=False, high_watermark=6, log_start_offset=0), "after an error"


def test_a_follower_has_one_session_and_an_earlier_registration_takes_no_place(sessions: Sessions) -> None:
    def follow(epoch: int) -> Session:
        session = open_(sessions, 0, 0, {A: Wanted(1, 10)}, replica_id=1, broker_epoch=epoch)
        session.fetches(1, epoch, 0.0)
        return session

    first, second = follow(5), follow(6)
    assert len(sessions) == 1
    with pytest.raises(KafkaError):
        open_(sessions, first.id, 1, {})
    follow(5)
    open_(sessions, second.id, 1, {})


def test_only_what_was_named_or_stirred_is_looked_at(sessions: Sessions) -> None:
    session = open_(sessions, 0, 0, {A: Wanted(1, 10), B: Wanted(2, 10)})
    assert [place.key for place in session.stirred] == [A, B]
    session.stirred.clear()
    open_(sessions, session.id, 1, {B: Wanted(3, 10)})
    assert [place.key for place in session.stirred] == [B]
    open_(sessions, session.id, 2, {}, forgotten=[B])
    assert not session.stirred
