"""A controller process's part in the cluster: it stands by, is elected, reigns, and stands by again."""

from __future__ import annotations

import asyncio
import functools
import logging
from dataclasses import dataclass, field

from headrace.cluster.configs import Settings
from headrace.cluster.image import Image
from headrace.controller import configs
from headrace.controller.peers import Peers
from headrace.controller.reign import Policy, Reign, ReignLimits
from headrace.controller.senders import SenderLimits, Term
from headrace.controller.stats import Stats
from headrace.errors import ErrorCode, KafkaError
from headrace.ports import Clock
from headrace.registry.api import LeaseLost, Registry, RegistryUnavailable, Session
from headrace.registry.election import Candidate, Leadership, campaign
from headrace.registry.keys import Keys

log = logging.getLogger(__name__)

_FIRST_BACKOFF, _MAX_BACKOFF = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a controller's work."""

    reign: ReignLimits = field(default_factory=ReignLimits)
    sender: SenderLimits = field(default_factory=SenderLimits)


class Controller:
    """Runs for election as long as `run` runs. `reign` is there while it is the active one."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        peers: Peers,
        clock: Clock,
        limits: Limits | None = None,
    ) -> None:
        self.id = settings.node_id
        self._settings = settings
        self._registry = registry
        self._peers = peers
        self._clock = clock
        self._limits = limits or Limits()
        self._keys = Keys(settings["cluster.id"])
        self._ttl = settings["broker.session.timeout.ms"] / 1000
        self._reign: Reign | None = None
        self.stats = Stats()

    @property
    def active(self) -> bool:
        """Whether it is the elected one and has taken over."""
        return self._reign is not None and self._reign.ready

    def image(self) -> Image | None:
        """The picture it decides from while it is the active one."""
        reign = self._reign
        return reign.image if reign is not None and reign.ready else None

    def waiting(self) -> int:
        """Changes that wait for their turn."""
        reign = self._reign
        return reign.waiting if reign is not None else 0

    async def reign(self) -> Reign:
        """The term of this controller; NOT_CONTROLLER on a standby, with the active one's address."""
        if self._reign is None:
            where = await self._ask_for_active_one()
            hint = f"ask {where}" if where else "nobody is active right now, try again"
            raise KafkaError(ErrorCode.NOT_CONTROLLER, f"controller {self.id} stands by: {hint}")
        self._reign.check_active()
        return self._reign

    async def run(self, address: str) -> None:
        """Never returns; when cancelled it resigns, so that a standby takes over at once.

        `address` is where this controller can be asked while it is active.
        """
        candidate = Candidate(self.id, address)
        backoff = _FIRST_BACKOFF
        while True:
            session: Session | None = None
            try:
                session = await self._registry.session(self._ttl)
                leadership = await campaign(
                    self._registry,
                    session,
                    self._keys.controller,
                    self._keys.controller_epoch,
                    candidate,
                    self._clock,
                )
                backoff = _FIRST_BACKOFF
                await self._serve(leadership)
                log.warning("controller %d is no longer active", self.id)
            except Exception as failed:
                # Also what nobody foresaw must not end the process's part in elections.
                expected = isinstance(failed, RegistryUnavailable | LeaseLost)
                log.warning("controller %d stands by: %s", self.id, failed, exc_info=not expected)
                await self._clock.sleep(backoff)
                backoff = min(backoff * 2, _MAX_BACKOFF)
            finally:
                if session is not None:
                    # Revoking the lease removes the election key: this is how it resigns.
                    await asyncio.shield(session.close())

    async def _serve(self, leadership: Leadership) -> None:
        log.info("controller %d is elected with epoch %d", self.id, leadership.epoch)
        self._reign = Reign(
            Term(self.id, leadership.epoch),
            self._registry,
            self._keys,
            leadership,
            self._peers,
            self._clock,
            self._policy(),
            self._limits.reign,
            self._limits.sender,
            self._settings["cluster.id"],
            self.stats,
        )
        self.stats.terms.inc()
        try:
            await self._reign.run()
        finally:
            self._reign = None

    def _policy(self) -> Policy:
        settings = self._settings
        interval = float(settings["leader.imbalance.check.interval.seconds"])
        return Policy(
            functools.partial(configs.unclean_allowed, settings=settings),
            functools.partial(configs.min_isr, settings=settings),
            interval if settings["auto.leader.rebalance.enable"] else None,
            settings["leader.imbalance.per.broker.percentage"],
        )

    async def _ask_for_active_one(self) -> str:
        try:
            held = await self._registry.get(self._keys.controller)
        except RegistryUnavailable:
            return ""
        return Candidate.from_bytes(held.value).address if held else ""
