"""The log dirs of a broker: which partition's log lies where, and what happens when a disk goes.

A dir holds one folder a partition and a few files: `meta.properties` (whose dir this is: cluster, node and directory
id), three checkpoints, `.lock` (one process at a time) and, between a clean stop and the next start,
`.kafka_cleanshutdown` (then no log has to be read). A dir that fails (EIO, ENOSPC, read-only) goes offline alone: its
partitions are named and refused with KAFKA_STORAGE_ERROR, and are not made anew elsewhere; the others carry on.

`load` may run on a worker thread before the broker serves; everything else belongs to one thread.
"""

from __future__ import annotations

import errno
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

from headrace.errors import ErrorCode, KafkaError
from headrace.storage import checkpoint, lineage, meta_properties, partition_metadata
from headrace.storage.checkpoint import CheckpointCorrupt, Newest, TopicPartition
from headrace.storage.config import LogConfig
from headrace.storage.files import DIRECTORY, File, Files, Lock
from headrace.storage.flush import Flush
from headrace.storage.log import Log
from headrace.storage.recovery import Known, open_log

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"
SYNC_NOW_AT_MOST = 16
"""When more partitions than this are new at once, each is made durable with its first flush: thousands of syncs in a
row would hold up everyone who uses the disk."""
DELETE = "-delete"
FUTURE = "-future"
STRAY = "-stray"
_logger = logging.getLogger(__name__)


def parse_folder(name: str) -> TopicPartition | None:
    """
    >>> parse_folder("orders.eu-12"), parse_folder("orders"), parse_folder("orders-1.0a1b-delete")
    (('orders.eu', 12), None, None)
    """
    topic, dash, number = name.rpartition("-")
    return (topic, int(number)) if dash and topic and number.isdecimal() else None


def one_after_the_other(works: list[Callable[[], None]]) -> list[OSError | None]:
    """Runs each, and tells how it ended."""
    return [attempt(work) for work in works]


def attempt(work: Callable[[], None]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    return None


@dataclass
class LogDir:
    """One directory. `failure` says why it is offline."""

    path: str
    directory_id: uuid.UUID | None = None
    failure: str | None = None
    logs: dict[TopicPartition, Log] = field(default_factory=dict)
    lost: set[TopicPartition] = field(default_factory=set)
    """Partitions that lie here and cannot be served: all of an offline dir's, and damaged ones."""
    clean: bool = False
    """Whether the last process that used it stopped cleanly."""
    lock: Lock | None = None
    newest: Newest = field(default_factory=Newest)
    """Which recovery points and log starts are on disk."""
    on_failure: Callable[[OSError], None] | None = None
    on_checkpoint_stale: Callable[[], None] | None = None
    """What its logs call, made once for all of them."""

    @property
    def online(self) -> bool:
        return self.failure is None


class LogDirs:
    """See the module's docstring."""

    def __init__(
        self,
        files: Files,
        paths: Sequence[str],
        *,
        node_id: int,
        cluster_id: str,
        config_of: Callable[[str], LogConfig],
        random: Random,
        on_offline: Callable[[LogDir], None] | None = None,
    ) -> None:
        self.files = files
        self.dirs = [LogDir(os.path.abspath(path)) for path in paths]
        for log_dir in self.dirs:
            log_dir.on_failure = partial(self.fail, log_dir)
            log_dir.on_checkpoint_stale = partial(self._write_offsets, log_dir)
        self.logs: dict[TopicPartition, Log] = {}
        self.topic_ids: dict[TopicPartition, uuid.UUID] = {}
        self.high_watermarks: dict[TopicPartition, int] = {}
        """As they were at the last stop; for replicas that start."""
        self.previous_broker_epoch = -1
        """The epoch in the clean-shutdown marker, -1 if the last stop was not clean."""
        self.lineage = ""
        """The same at two starts when no record was lost in between (`storage.lineage`); empty: that is not known."""
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._config_of = config_of
        self._random = random
        self._on_offline = on_offline
        self._dir_of: dict[TopicPartition, LogDir] = {}
        self._doomed: list[tuple[int, LogDir, str]] = []
        self._saved_marks: dict[str, dict[TopicPartition, int]] = {}
        self._new: list[tuple[File, str, str]] = []
        """Files of partitions that were created and not synced yet, with their folder and dir."""

    # -- start ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Claim the dirs and open every partition's log in them.

        A dir that cannot be read is offline afterwards. Raises KafkaError when none is left, when another process
        holds one, or when one belongs to another cluster or node.
        """
        for log_dir in self.dirs:
            try:
                self._load_dir(log_dir)
            except OSError as error:
                self.fail(log_dir, error)
        self._settle_futures()
        self._settle_lineage()
        if not any(log_dir.online for log_dir in self.dirs):
            reasons = "; ".join(f"{log_dir.path}: {log_dir.failure}" for log_dir in self.dirs)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no log dir can be used: {reasons}")

    def _settle_lineage(self) -> None:
        # What lies in a dir that is offline cannot be vouched for.
        dirs = [(log_dir.path, log_dir.clean) for log_dir in self._online()]
        whole = len(dirs) == len(self.dirs)
        try:
            self.lineage = lineage.settle(self.files, dirs, self._random) if whole else ""
        except OSError as error:
            _logger.error("what was lost since the last start cannot be noted: %s", error)

    def _load_dir(self, log_dir: LogDir) -> None:
        files, path = self.files, log_dir.path
        files.mkdir(path)
        try:
            log_dir.lock = files.lock(os.path.join(path, LOCK))
        except BlockingIOError:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is in use by another process") from None
        log_dir.directory_id = meta_properties.claim(
            files, path, node_id=self._node_id, cluster_id=self._cluster_id, random=self._random
        )
        self._read_marker(log_dir)
        names = files.scan(path)
        found = {partition: name for name in names if (partition := _partition_of(name, names)) is not None}
        log_dir.lost = set(found)
        for name in names:
            if names[name] == DIRECTORY and name.endswith(DELETE):
                self._doomed.append((0, log_dir, os.path.join(path, name)))
        recovery_points = self._checkpoint(log_dir, checkpoint.RECOVERY_POINT)
        starts = self._checkpoint(log_dir, checkpoint.LOG_START_OFFSET)
        self.high_watermarks.update(self._checkpoint(log_dir, checkpoint.REPLICATION_OFFSET))
        for partition, name in found.items():
            known = Known(recovery_points.get(partition, 0), starts.get(partition, 0), log_dir.clean)
            self._open(log_dir, partition, os.path.join(path, name), known)

    def _open(self, log_dir: LogDir, partition: TopicPartition, folder: str, known: Known) -> None:
        if partition in self.logs:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{folder} and {self.logs[partition].folder} hold the same partition: move one of them away",
            )
        try:
            topic_id = partition_metadata.read_topic_id(self.files, os.path.join(folder, partition_metadata.FILE_NAME))
            log = open_log(self.files, folder, self._config_of(partition[0]), known, self._random.random())
        except (KafkaError, ValueError) as error:
            _logger.error("%s cannot be opened and stays offline: %s", folder, error)
            lineage.forget(self.files, log_dir.path)
            self._dir_of[partition] = log_dir
            return
        if log.cut_by_recovery:
            # By damage, perhaps, and not by the end of the process: then others were told that this was here.
            lineage.forget(self.files, log_dir.path)
        self._add(log_dir, partition, log, topic_id)

    def _add(self, log_dir: LogDir, partition: TopicPartition, log: Log, topic_id: uuid.UUID | None) -> None:
        log.on_failure, log.on_checkpoint_stale = log_dir.on_failure, log_dir.on_checkpoint_stale
        log_dir.lost.discard(partition)
        log_dir.logs[partition] = log
        self.logs[partition] = log
        self._dir_of[partition] = log_dir
        if topic_id is not None:
            self.topic_ids[partition] = topic_id

    def _read_marker(self, log_dir: LogDir) -> None:
        """Take the clean-shutdown marker: from here on a stop is unclean until `close` says otherwise."""
        path = os.path.join(log_dir.path, CLEAN_SHUTDOWN)
        if self.files.exists(path):
            log_dir.clean = True
            self.previous_broker_epoch = meta_properties.parse_marker(self.files.read(path))
            self.files.remove(path)
            self.files.sync_dir(log_dir.path)

    def _checkpoint(self, log_dir: LogDir, name: str) -> dict[TopicPartition, int]:
        try:
            return checkpoint.read_offsets(self.files, os.path.join(log_dir.path, name))
        except CheckpointCorrupt as error:
            _logger.warning("%s; every log of the dir is read", error)
            log_dir.clean = False
            return {}

    # -- partitions ----------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> Log | None:
        """The log, None when there is none; KAFKA_STORAGE_ERROR when it is on an offline dir."""
        log = self.logs.get((topic, partition))
        if log is None and (log_dir := self._lost_in((topic, partition))) is not None:
            reason = log_dir.failure or "it is damaged, see the broker's log"
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} is offline in {log_dir.path}: {reason}"
            )
        return log

    def _lost_in(self, partition: TopicPartition) -> LogDir | None:
        return next((log_dir for log_dir in self.dirs if partition in log_dir.lost), None)

    def create(self, topic: str, partition: int, topic_id: uuid.UUID | None = None, *, is_new: bool = True) -> Log:
        """The partition's log, made in the dir with the fewest partitions if it is not there.

        `is_new=False` says that it had a log here once: then it is not made anew while a dir is offline, for it may lie
        there. A log of another topic with the same name is refused with INCONSISTENT_TOPIC_ID.
        """
        key = (topic, partition)
        log = self.get(topic, partition)
        if log is not None:
            self._check_topic_id(key, topic_id)
            # It may have been opened before this broker had heard of the topic's settings.
            log.update_config(self._config_of(topic))
            if topic_id is not None and key not in self.topic_ids:
                with self._using(self._dir_of[key], log.folder):
                    self._write_topic_id(self._dir_of[key], log.folder, topic_id)
                self.topic_ids[key] = topic_id
            return log
        if not is_new and any(not log_dir.online for log_dir in self.dirs):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} may lie in a log dir that is offline")
        log_dir = self._emptiest()
        folder = os.path.join(log_dir.path, f"{topic}-{partition}")
        with self._using(log_dir, folder):
            log = open_log(self.files, folder, self._config_of(topic), Known(), self._random.random())
            self._write_topic_id(log_dir, folder, topic_id)
        self._add(log_dir, key, log, topic_id)
        return log

    @contextmanager
    def _using(self, log_dir: LogDir, folder: str) -> Iterator[None]:
        """What fails in here takes the dir offline, and is told as KAFKA_STORAGE_ERROR."""
        try:
            yield
        except OSError as error:
            self.fail(log_dir, error)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{folder}: {error}") from error

    def _write_topic_id(self, log_dir: LogDir, folder: str, topic_id: uuid.UUID | None) -> None:
        if topic_id is not None:
            path = os.path.join(folder, partition_metadata.FILE_NAME)
            self._new.append((partition_metadata.write_topic_id(self.files, path, topic_id), folder, log_dir.path))

    def begin_sync(self) -> list[tuple[LogDir, Callable[[], None]]]:
        """For each dir what makes the partitions created since the last call durable, for a worker thread; `fail` what
        fails.

        Until then a power cut may undo their creation, which loses nothing: a record's own durability is the flush's
        business, and an empty partition is made again by whoever wanted it.
        """
        new, self._new = self._new, []
        if len(new) > SYNC_NOW_AT_MOST:
            for file, folder, _ in new:
                log = self.logs.get(parse_folder(os.path.basename(folder)) or ("", -1))
                if log is not None:
                    log.begins_with(file)
            return []
        made = [(d, [(file, folder) for file, folder, path in new if path == d.path]) for d in self._online()]
        return [(log_dir, partial(self._sync_new, log_dir.path, here)) for log_dir, here in made if here]

    def _sync_new(self, path: str, made: list[tuple[File, str]]) -> None:
        for file, folder in made:
            try:
                file.sync()
                self.files.sync_dir(folder)
            except FileNotFoundError:
                continue  # deleted meanwhile
        self.files.sync_dir(path)

    def _check_topic_id(self, key: TopicPartition, topic_id: uuid.UUID | None) -> None:
        known = self.topic_ids.get(key)
        if topic_id is not None and known is not None and known != topic_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{key[0]}-{key[1]} holds topic {partition_metadata.encode_uuid(known)},"
                f" not {partition_metadata.encode_uuid(topic_id)}",
            )

    def _emptiest(self) -> LogDir:
        online = [log_dir for log_dir in self.dirs if log_dir.online]
        if not online:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "every log dir is offline")
        return min(online, key=lambda log_dir: len(log_dir.logs))

    def dir_of(self, topic: str, partition: int) -> LogDir | None:
        return self._dir_of.get((topic, partition))

    def delete(self, topic: str, partition: int, now_ms: int) -> None:
        """Take a partition away: its folder is renamed now, and removed after `file.delete.delay.ms`."""
        key = (topic, partition)
        log = self.get(topic, partition)
        if log is None:
            return
        log_dir = self._dir_of[key]
        unique = uuid.UUID(int=self._random.getrandbits(128)).hex
        # A file name has at most 255 bytes.
        name = f"{topic[: 255 - len(DELETE) - 34 - len(str(partition))]}-{partition}.{unique}{DELETE}"
        gone = os.path.join(log_dir.path, name)
        log.release()
        with self._using(log_dir, log.folder):
            # Not synced: a folder that comes back after a power cut belongs to no topic, and is deleted again.
            self.files.rename(log.folder, gone)
        # Who is still at work on it (a flush, say) finds no files, and that is not the disk's failure.
        log.take_offline(FileNotFoundError(errno.ENOENT, "the partition was deleted"))
        del self.logs[key], log_dir.logs[key], self._dir_of[key]
        self.topic_ids.pop(key, None)
        self.high_watermarks.pop(key, None)
        self._doomed.append((now_ms + log.config.file_delete_delay_ms, log_dir, gone))

    # -- moves between dirs --------------------------------------------------------------------------------------

    def begin_move(self, topic: str, partition: int, target: LogDir) -> Log:
        """An empty future log in another dir, from the current one's start on. Copy into it, then `finish_move`."""
        current = self.logs[topic, partition]
        unique = uuid.UUID(int=self._random.getrandbits(128)).hex
        name = f"{topic[: 255 - len(FUTURE) - 34 - len(str(partition))]}-{partition}.{unique}{FUTURE}"
        folder = os.path.join(target.path, name)
        with self._using(target, folder):
            future = open_log(self.files, folder, current.config, Known(log_start_offset=current.log_start_offset))
            topic_id = self.topic_ids.get((topic, partition))
            if topic_id is not None:
                path = os.path.join(folder, partition_metadata.FILE_NAME)
                partition_metadata.write_topic_id(self.files, path, topic_id).sync()
        future.on_failure = target.on_failure
        return future

    def finish_move(self, topic: str, partition: int, future: Log, target: LogDir, now_ms: int) -> Log:
        """Put a future log that holds everything in the place of the current one; returns it as it is served now.

        The future log is complete and durable before the current folder loses its name. A crash in between leaves only
        the future one, and the next start takes that.
        """
        key = (topic, partition)
        current, topic_id = self.logs[key], self.topic_ids.get(key)
        mark = self.high_watermarks.get(key)
        future.inherit(current)
        end, start = future.log_end_offset, future.log_start_offset
        future.close()
        with self._using(target, future.folder):
            self.files.sync_dir(target.path)
        self.delete(topic, partition, now_ms)
        folder = os.path.join(target.path, f"{topic}-{partition}")
        with self._using(target, folder):
            self.files.rename(future.folder, folder)
            self.files.sync_dir(target.path)
            log = open_log(self.files, folder, current.config, Known(end, start, True), self._random.random())
        self._add(target, key, log, topic_id)
        if mark is not None:
            self.high_watermarks[key] = mark
        return log

    def abandon_move(self, future: Log) -> None:
        """Give a future log up, and its files."""
        future.release()
        target = next(d for d in self.dirs if d.path == os.path.dirname(future.folder))
        if target.online:
            try:
                self.files.remove_tree(future.folder)
            except OSError as error:
                self.fail(target, error)

    def _settle_futures(self) -> None:
        """After a crash: a future log is of use only if its partition has no other. Nothing goes while a dir is off."""
        if not all(log_dir.online for log_dir in self.dirs):
            return
        for log_dir in self.dirs:
            for name in list(self.files.scan(log_dir.path)):
                key = parse_folder(name.rpartition(".")[0]) if name.endswith(FUTURE) else None
                if key is None:
                    continue
                folder = os.path.join(log_dir.path, name)
                if key in self.logs or self._lost_in(key) is not None:
                    self.files.remove_tree(folder)
                    continue
                _logger.warning("%s takes the place of the log whose move it was", folder)
                settled = os.path.join(log_dir.path, f"{key[0]}-{key[1]}")
                self.files.rename(folder, settled)
                self.files.sync_dir(log_dir.path)
                self._open(log_dir, key, settled, Known())

    def begin_removals(self, now_ms: int) -> list[tuple[LogDir, Callable[[], None]]]:
        """What removes the folders of deleted partitions whose delay is over, for a worker thread; `fail` what fails.

        What is not removed before a stop is found at the next start.
        """
        due = [entry for entry in self._doomed if entry[0] <= now_ms]
        self._doomed = [entry for entry in self._doomed if entry[0] > now_ms]
        return [(log_dir, partial(self.files.remove_tree, path)) for _, log_dir, path in due]

    # -- failure, checkpoints, stop ------------------------------------------------------------------------------

    def fail(self, log_dir: LogDir, error: OSError) -> None:
        """Take a dir offline with all its partitions."""
        if not log_dir.online:
            return
        log_dir.failure = str(error)
        log_dir.lost |= set(log_dir.logs)
        for each in self.dirs:
            lineage.forget(self.files, each.path)
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(log_dir.lost)) or "none known"
        _logger.error("log dir %s goes offline: %s; its partitions: %s", log_dir.path, error, names)
        for partition, log in log_dir.logs.items():
            log.take_offline(error)
            self.logs.pop(partition, None)
        log_dir.logs.clear()
        if self._on_offline is not None:
            self._on_offline(log_dir)

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """Write recovery points and log start offsets of every dir; high watermarks too when they are given."""
        for log_dir in self._online():
            try:
                self._write_offsets(log_dir)
                if high_watermarks is not None:
                    here = {key: high_watermarks[key] for key in log_dir.logs if key in high_watermarks}
                    self._write(log_dir, checkpoint.REPLICATION_OFFSET, here)
            except OSError as error:
                self.fail(log_dir, error)

    def begin_high_watermarks(
        self, high_watermarks: Mapping[TopicPartition, int]
    ) -> list[tuple[LogDir, Callable[[], None]]]:
        """What writes the high watermarks of dirs where they moved; run it on a worker thread, `fail` what fails."""
        works: list[tuple[LogDir, Callable[[], None]]] = []
        for log_dir in self._online():
            here = {key: high_watermarks[key] for key in log_dir.logs if key in high_watermarks}
            if here != self._saved_marks.get(log_dir.path):
                self._saved_marks[log_dir.path] = here
                works.append((log_dir, partial(self._write, log_dir, checkpoint.REPLICATION_OFFSET, here)))
        return works

    def begin_checkpoints(self) -> list[tuple[LogDir, Callable[[], None], Callable[[], None]]]:
        """For each dir what writes recovery points and log starts, for a worker thread, and what notes afterwards that
        it was done; `fail` what fails."""
        return [(log_dir, *self._begin_offsets(log_dir)) for log_dir in self._online()]

    def _write_offsets(self, log_dir: LogDir) -> None:
        write, written = self._begin_offsets(log_dir)
        write()
        written()

    def _begin_offsets(self, log_dir: LogDir) -> tuple[Callable[[], None], Callable[[], None]]:
        logs = list(log_dir.logs.items())
        points = {key: log.recovery_point for key, log in logs}
        starts = {k: log.log_start_offset for k, log in logs if log.log_start_offset > log.segments.first.base_offset}
        number = log_dir.newest.take()

        def replace() -> None:
            self._write(log_dir, checkpoint.RECOVERY_POINT, points)
            self._write(log_dir, checkpoint.LOG_START_OFFSET, starts)

        def written() -> None:
            for key, log in logs:
                if points[key] <= log.recovery_point:  # else it was cut again meanwhile
                    log.checkpoint_stale = False

        return partial(log_dir.newest.write, number, replace), written

    def _write(self, log_dir: LogDir, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        checkpoint.write_offsets(self.files, os.path.join(log_dir.path, name), offsets)

    def _online(self) -> Iterable[LogDir]:
        return [log_dir for log_dir in self.dirs if log_dir.online]

    def close(
        self,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
        broker_epoch: int = -1,
        run_all: Callable[[list[Callable[[], None]]], list[OSError | None]] = one_after_the_other,
    ) -> None:
        """Stop cleanly: close every log, write the checkpoints, and leave the marker that says so in each sound dir.

        `run_all` makes the files durable and says how each attempt ended; several threads at a time do that faster.
        """
        for log_dir, sync in self.begin_sync():
            if (failed := attempt(sync)) is not None:
                self.fail(log_dir, failed)
        closing: list[tuple[LogDir, Log, Flush]] = []
        for log_dir in self._online():
            for log in list(log_dir.logs.values()):
                try:
                    if log_dir.online:
                        closing.append((log_dir, log, log.begin_close()))
                except KafkaError as error:
                    _logger.error("%s was not closed cleanly: %s", log.folder, error)
        failures = run_all([flush.run for _, _, flush in closing])
        for (log_dir, log, flush), failure in zip(closing, failures, strict=True):
            if failure is not None:
                self.fail(log_dir, failure)
            elif log_dir.online:
                log.finish_flush(flush)
            log.release()
        self.write_checkpoints(high_watermarks)
        for log_dir in self._online():
            try:
                path = os.path.join(log_dir.path, CLEAN_SHUTDOWN)
                checkpoint.replace_file(self.files, path, meta_properties.render_marker(broker_epoch))
            except OSError as error:
                self.fail(log_dir, error)
        self.release()

    def release(self) -> None:
        """Give the dirs up without a word: what a start that failed, or a crash, leaves behind."""
        for log_dir in self.dirs:
            if log_dir.lock is not None:
                log_dir.lock.release()
                log_dir.lock = None


def _partition_of(name: str, names: Mapping[str, int]) -> TopicPartition | None:
    if names[name] != DIRECTORY or name.endswith((DELETE, FUTURE, STRAY)):
        return None
    return parse_folder(name)
