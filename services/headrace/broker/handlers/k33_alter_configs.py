"""AlterConfigs: replaces every setting of a topic or broker; forwarded to the active controller.

Versions 0 to 2. Settings that are not named go back to their defaults: IncrementalAlterConfigs is what tools use today.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.handlers.altering import alter, refuse_all
from headrace.v1 import controller_pb2 as pb
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.ALTER_CONFIGS, versions=(0, 2), on_error=refuse_all)
async def alter_configs(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    return await alter(broker, context, request, replace=True, kind=lambda config: pb.AlterConfigsRequest.SET)
