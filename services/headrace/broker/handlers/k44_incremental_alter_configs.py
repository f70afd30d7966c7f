"""IncrementalAlterConfigs: sets, deletes, extends or shortens single settings; forwarded to the active controller.

Versions 0 and 1 (KIP-339).
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.handlers.altering import alter, refuse_all
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), on_error=refuse_all)
async def incremental_alter_configs(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    return await alter(broker, context, request, replace=False, kind=lambda config: config.config_operation)
