"""DescribeLogDirs: the log directories, with the size and lag of each replica in them.

Versions 1 to 4. A directory that failed is listed with KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

from typing import Any

from headrace.broker.broker import Broker
from headrace.broker.log_dir_report import LogDirReport, log_dir_report
from headrace.errors import ErrorCode
from headrace.wire.api import Context, handles
from headrace.wire.protocol import ApiKey


@handles(ApiKey.DESCRIBE_LOG_DIRS, versions=(1, 4))
def describe_log_dirs(broker: Broker, context: Context, request: Any) -> dict[str, Any]:
    wanted = None if request.topics is None else {(t.topic, index) for t in request.topics for index in t.partitions}
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.NONE,
        "results": [_log_dir(report, wanted) for report in log_dir_report(broker)],
    }


def _log_dir(report: LogDirReport, wanted: set[tuple[str, int]] | None) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for replica in report.replicas:
        if wanted is None or (replica.topic, replica.partition) in wanted:
            topics.setdefault(replica.topic, []).append(
                {
                    "partition_index": replica.partition,
                    "partition_size": replica.size,
                    "offset_lag": replica.offset_lag,
                    "is_future_key": replica.is_future,
                }
            )
    return {
        "error_code": ErrorCode.NONE if report.error is None else report.error.code,
        "log_dir": report.path,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        "total_bytes": report.total_bytes,
        "usable_bytes": report.usable_bytes,
    }
