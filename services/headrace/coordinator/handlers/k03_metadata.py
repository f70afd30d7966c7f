"""Metadata: brokers, topics and leaders, for clients that ask any node they know.

Versions 0 to 13. Answered from the coordinator's picture of the cluster, as a broker answers it, but no topic is
created. A coordinator is not among the brokers: clients find it with FindCoordinator.
"""

from __future__ import annotations

from typing import Any

from headrace.coordinator.coordinator import Coordinator
from headrace.wire import picture
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.METADATA, versions=(0, 13))
def metadata(coordinator: Coordinator, context: Context, request: Any) -> dict[str, Any]:
    wanted = None if context.version == 0 and not request.topics else request.topics
    image = coordinator.image
    # Any broker does what clients want of the controller.
    return picture.metadata(image, wanted, min(image.brokers, default=-1))
