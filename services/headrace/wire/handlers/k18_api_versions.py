"""ApiVersions (key 18), v0–4: which APIs and versions this listener serves.

Behaviour: answered before anything else on a connection, also before authentication. The list is made from the
registered handlers, so it says exactly what is served. A version from the future is answered with a v0 body,
UNSUPPORTED_VERSION and the list (KIP-511); the response header is always v0, since the client cannot know more.
Versions: v3 is flexible and carries the client's software name and version (KIP-511) and features (KIP-584); v4 may
say features with a minimum of 0.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headrace.errors import ErrorCode
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey

if TYPE_CHECKING:
    from headrace.wire.api import Api

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")


@handles(ApiKey.API_VERSIONS, versions=(0, 4))
def api_versions(api: Api, context: Context, request: Any) -> dict[str, Any]:
    if context.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": api.advertised()}
        context.connection.client_software = (name, version)
    features = dict(api.features())
    if context.version < 4:
        supported = features.get("supported_features", ())
        features["supported_features"] = [each for each in supported if each["min_version"] > 0]
    return {"error_code": ErrorCode.NONE, "api_keys": api.advertised(), **features}
