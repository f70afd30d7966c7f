"""Registering a process under its id: the key lives as long as its lease, and its create revision is the epoch.

The directory id (made once in each data directory) says whose id it is. The same directory coming back replaces what
its former process left behind, and that one, should it still run, finds itself fenced. Another directory is refused
while the id is taken.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict, dataclass, field

from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.registry.api import (
    CreateRevision,
    Delete,
    KeyValue,
    LeaseLost,
    ModRevision,
    Put,
    Registry,
    RegistryUnavailable,
    Session,
)
from headrace.registry.ownership import Ownership

logger = logging.getLogger(__name__)

_FIRST_BACKOFF, _MAX_BACKOFF = 0.05, 2.0


class DuplicateBroker(KafkaError):
    """Another live process has this id."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)


class Fenced(KafkaError):
    """A newer process of the same directory has taken this one's place: it must stop."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.STALE_BROKER_EPOCH, message)


@dataclass(frozen=True, slots=True)
class Registration:
    """What a process says about itself. `incarnation_id` is new at every start of the process."""

    id: str
    host: str
    ports: Mapping[str, int]
    directory_id: str
    incarnation_id: str
    rack: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    lineage_id: str = ""
    """New when what the process wrote before may be lost in part."""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> Registration:
        """Fields that only a newer version knows are left out."""
        try:
            held = json.loads(value)
            return cls(**{name: held[name] for name in cls.__dataclass_fields__ if name in held})
        except (ValueError, TypeError) as error:
            raise ValueError(f"this is no registration: {value[:200]!r} ({error})") from error

    def __str__(self) -> str:
        return f"{self.host} (ports {', '.join(f'{n} {p}' for n, p in self.ports.items())}, dir {self.directory_id})"


class Registered(Ownership):
    """A registration in force."""

    @property
    def epoch(self) -> int:
        return self.create_revision


async def register(
    registry: Registry, session: Session, key: str, registration: Registration, *, take_over: bool = True
) -> Registered:
    """Registers once; raises `DuplicateBroker`, `Fenced`, `LeaseLost` or `RegistryUnavailable`.

    `take_over` is for the start of a process. Without it (coming back after a lost lease) another process of the same
    directory is the newer one, and this one is fenced.
    """
    while session.valid:
        current = await registry.get(key)
        if current is not None and current.lease == session.lease:
            # Registered by a call whose answer was lost.
            return Registered(registry, session, key, current.create_revision)
        if current is None:
            result = await registry.txn([CreateRevision(key, 0)], [Put(key, registration.to_bytes(), session.lease)])
            if result.succeeded:
                return Registered(registry, session, key, result.revision)
            continue
        _check_replaceable(key, current, registration, take_over)
        # Two steps, because etcd changes a key once in a transaction and a put alone would keep the create revision.
        # Should another process come in between, the next round sees it.
        if (await registry.txn([ModRevision(key, current.mod_revision)], [Delete(key)])).succeeded:
            logger.info("%s: replaced the stale registration of epoch %d", key, current.create_revision)
    raise LeaseLost(f"the session ended before {key} was registered")


def _check_replaceable(key: str, current: KeyValue, registration: Registration, take_over: bool) -> None:
    other = Registration.from_bytes(current.value)
    if other.directory_id != registration.directory_id:
        raise DuplicateBroker(
            f"id {registration.id} is taken by a live process on {other}, and this one has directory "
            f"{registration.directory_id}: give one of them another id, or stop the other and start again ({key})"
        )
    if not take_over and other.incarnation_id != registration.incarnation_id:
        raise Fenced(f"a newer process on {other} has taken over id {registration.id}: this one must stop ({key})")


async def keep_registered(
    registry: Registry, key: str, registration: Registration, ttl: float, clock: Clock
) -> AsyncGenerator[Registered, None]:
    """Registers, yields the registration, waits until it is lost, and so on: a new epoch each time.

    While the registry is unavailable it tries again with back-off. It ends by raising `DuplicateBroker` or `Fenced`,
    or when the caller closes it, which removes the registration. Iterate it from a task of its own: asking for the next
    item is what waits for the loss of the last.
    """
    take_over = True
    backoff = 0.0
    while True:
        session: Session | None = None
        registered: Registered | None = None
        try:
            session = await registry.session(ttl)
            registered = await register(registry, session, key, registration, take_over=take_over)
            take_over, backoff = False, 0.0
            yield registered
            await registered.lost()
        except (RegistryUnavailable, LeaseLost) as error:
            logger.warning("registration of %s: %s", key, error)
            backoff = min(max(2 * backoff, _FIRST_BACKOFF), _MAX_BACKOFF)
        finally:
            if session is not None:
                await session.close()
        if registered is not None and registered.fenced:
            raise Fenced(f"the registration {key} of epoch {registered.epoch} was taken away: this process must stop")
        await clock.sleep(backoff)
