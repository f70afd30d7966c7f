"""How a command runs against a cluster: where that is, and what is said (with which exit code) when it goes wrong.

Exit codes: 0 done, 1 refused or failed, 2 a mistake in the command line, 3 no cluster reached, 4 no such thing, 130
interrupted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

from headrace.client import Admin, ClusterUnreachable
from headrace.errors import ErrorCode, KafkaError

T = TypeVar("T")

DEFAULT_BOOTSTRAP = "127.0.0.1:9094"
CONNECT_TIMEOUT_MS = 4_000
FAILED, USAGE, UNREACHABLE, NOT_FOUND, INTERRUPTED = 1, 2, 3, 4, 130

_NOT_FOUND = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_ID)
_HINTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`headrace topics list` shows what there is",
    ErrorCode.GROUP_ID_NOT_FOUND: "`headrace groups list` shows what there is",
    ErrorCode.TOPIC_ALREADY_EXISTS: "`headrace topics describe NAME` shows it, `headrace topics alter` changes it",
    ErrorCode.INVALID_REPLICATION_FACTOR: "`headrace cluster brokers` shows how many there are",
}


def bootstrap_of(given: str | None) -> str:
    """What --bootstrap or HEADRACE_BOOTSTRAP said, else the current profile, else the default."""
    if given:
        return given
    from headrace.cli.profiles import current

    return current() or DEFAULT_BOOTSTRAP


def client_settings(bootstrap: str | None) -> dict[str, Any]:
    """Settings that every client of a command has."""
    return {
        "bootstrap_servers": bootstrap_of(bootstrap),
        "client_id": "headrace-cli",
        "connect_timeout_ms": CONNECT_TIMEOUT_MS,
    }


def admin(bootstrap: str | None) -> Admin:
    """An admin client for one command: it gives up earlier than a program would."""
    return Admin(**client_settings(bootstrap), default_api_timeout_ms=20_000, request_timeout_ms=15_000)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command to its end, and says in one or two lines what went wrong if it does."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        return asyncio.run(work)
    except ClusterUnreachable as error:
        fail(
            f"{error.message}.\n"
            "Start one with `headrace dev` (or `make up`), or say where it is with --bootstrap or HEADRACE_BOOTSTRAP.",
            UNREACHABLE,
        )
    except KafkaError as error:
        fail(sentence(error), NOT_FOUND if error.code in _NOT_FOUND else FAILED)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        end_quietly()


def sentence(error: KafkaError) -> str:
    """The error for people: what happened, Kafka's name for it, and what to do when that is known."""
    text = f"{error.message} ({error.code.name})" if error.message else error.code.name
    hint = _HINTS.get(error.code)
    return f"{text}: {hint}" if hint else text


def end_quietly() -> NoReturn:
    """Whoever read our output has enough (`| head`): end as a program killed by the signal would, without a word."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(128 + signal.SIGPIPE) from None


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Says what went wrong on standard error and ends."""
    print(f"headrace: {message}", file=sys.stderr)
    raise SystemExit(code)


def complain(errors: dict[Any, KafkaError | None]) -> None:
    """One line for each part of a request that failed; ends with its code if there was one."""
    failed = [error for error in errors.values() if error is not None]
    for error in failed:
        print(f"headrace: {sentence(error)}", file=sys.stderr)
    if failed:
        raise SystemExit(NOT_FOUND if failed[0].code in _NOT_FOUND else FAILED)
