"""Who may do what. One implementation today: everyone may do everything."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Operation(StrEnum):
    """What a principal wants to do, in the words of Kafka's ACLs."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"


class Authorizer(Protocol):
    @property
    def unrestricted(self) -> bool:
        """Whether it allows everything, so that the hot path need not ask."""
        ...

    def allows(self, principal: str, operation: Operation, topic: str) -> bool: ...


class AllowAll:
    """No access control: whoever reaches the port may use it."""

    unrestricted = True

    def allows(self, principal: str, operation: Operation, topic: str) -> bool:
        return True
