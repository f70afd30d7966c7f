"""The `Files` port: every touch of a disk by `storage` goes through it, so that a test or the simulation can tear a
write, fill the disk or pull the plug at any call (`memory_files`).

`OsFiles` is the real one. Two things bound what it holds open, however many partitions and segments there are: at most
`max_open` descriptors and `max_maps` memory maps; the least recently used are let go and come back on demand (a clock,
not a list: a use sets one flag). A descriptor is let go by dropping the reference to its `Handle`, which closes itself
when the last reference goes; so a `FileRange` on its way through sendfile keeps its own file open, and nobody has to
pair acquire with release.

Threads: one thread owns a `Files`. Only `File.sync`, `Files.sync_dir`, and `Files.remove` and `remove_tree` of what
nobody has open may be called from another one.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import shutil
import sys
from collections import OrderedDict
from typing import NamedTuple, Protocol

BOOT_ID = "/proc/sys/kernel/random/boot_id"
DIRECTORY = -1
"""The size that `Files.scan` gives a directory."""

Data = bytes | bytearray | memoryview
Mapped = bytes | mmap.mmap


class Handle(Protocol):
    """An open file to read from; it stays open for as long as someone refers to it."""

    def fileno(self) -> int: ...

    def pread(self, length: int, position: int) -> bytes: ...


class FileRange(NamedTuple):
    """Bytes of a file, for sendfile. Hold it until they are sent: that keeps the file open.

    The file may be truncated meanwhile (a follower that diverged), and then gives fewer bytes than `length`.
    """

    file: Handle
    position: int
    length: int

    def fileno(self) -> int:
        return self.file.fileno()

    def read(self) -> bytes:
        return self.file.pread(self.length, self.position)

    def release(self) -> None:
        """Nothing to do: the file is let go with the last reference to this range."""


class File(Protocol):
    """One file by name. Nothing is opened before it is used; `append` creates it."""

    path: str

    def append(self, data: Data) -> None:
        """Write all of `data` at the end with one call, or raise OSError (a part may then be there: truncate)."""
        ...

    def pread(self, length: int, position: int) -> bytes: ...

    def pread_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` as far as the file goes; how many bytes that were."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make what was written durable. Safe from a worker thread."""
        ...

    def map(self) -> Mapped:
        """The content, for a file that does not grow any more; do not keep it."""
        ...

    def handle(self) -> Handle: ...

    def rename(self, path: str) -> None: ...

    def remove(self) -> None:
        """Delete the file if it is there."""
        ...

    def close(self) -> None:
        """Let go of descriptor and map; a later use opens again."""
        ...


class Lock(Protocol):
    """An exclusive claim on a directory."""

    def release(self) -> None: ...


class Files(Protocol):
    """What `storage` needs of a file system."""

    def open(self, path: str) -> File: ...

    def scan(self, path: str) -> dict[str, int]:
        """Names in a directory and their sizes (`DIRECTORY` for a directory)."""
        ...

    def exists(self, path: str) -> bool: ...

    def mkdir(self, path: str) -> None:
        """Make the directory and its parents, if they are not there."""
        ...

    def read(self, path: str) -> bytes: ...

    def write(self, path: str, data: bytes) -> None:
        """Replace a small file's content and make it durable (its name is, after `sync_dir`)."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None:
        """Delete a file if it is there."""
        ...

    def remove_tree(self, path: str) -> None:
        """Delete a directory with all it holds, if it is there."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make names created, renamed and removed in a directory durable. Safe from a worker thread."""
        ...

    def space(self, path: str) -> tuple[int, int]:
        """(total, usable) bytes of the volume that holds `path`."""
        ...

    def lock(self, path: str) -> Lock:
        """Claim `path` for this process, or raise BlockingIOError."""
        ...

    def boot_id(self) -> str:
        """Another one after each start of the machine; empty where that cannot be told."""
        ...


class OsHandle:
    """A descriptor that closes itself with its last reference."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def fileno(self) -> int:
        return self.fd

    def pread(self, length: int, position: int) -> bytes:
        return os.pread(self.fd, length, position)

    def __del__(self) -> None:
        os.close(self.fd)


class OsFile:
    """See `File`."""

    __slots__ = ("_files", "_folder", "_handle", "_map", "_name", "map_used", "used")

    def __init__(self, files: OsFiles, path: str) -> None:
        self._files = files
        self.path = path
        self._handle: OsHandle | None = None
        self._map: mmap.mmap | None = None
        self.used = False
        self.map_used = False

    @property
    def path(self) -> str:
        return os.path.join(self._folder, self._name)

    @path.setter
    def path(self, path: str) -> None:
        # Thousands of partitions have files of the same few names, and several each: every string is held once.
        folder, name = os.path.split(path)
        self._folder, self._name = sys.intern(folder), sys.intern(name)

    def append(self, data: Data) -> None:
        # As _used_handle, without the call: this is the hot path.
        handle = self._handle
        if handle is None:
            handle = self._open(os.O_CREAT)
        else:
            self.used = True
        written = os.write(handle.fd, data)
        if written != len(data):
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were written", self.path)

    def pread(self, length: int, position: int) -> bytes:
        handle = self._used_handle()
        return os.pread(handle.fd, length, position)

    def pread_into(self, buffer: memoryview, position: int) -> int:
        handle = self._used_handle()
        return os.preadv(handle.fd, [buffer], position)

    def size(self) -> int:
        return os.stat(self.path).st_size

    def truncate(self, size: int) -> None:
        self._map = None
        fd = (self._handle or self._open(os.O_CREAT)).fd
        # ext4 writes a file out when it is closed if it was ever cut to nothing, even from nothing: closing a log that
        # is deleted would wait for the disk.
        if os.fstat(fd).st_size != size:
            os.ftruncate(fd, size)

    def sync(self) -> None:
        # A descriptor of our own when there is none: the table of open files belongs to the owner's thread, and
        # syncing through any descriptor syncs the file.
        handle = self._handle or OsHandle(os.open(self.path, os.O_RDWR | os.O_CLOEXEC))
        os.fdatasync(handle.fd)

    def map(self) -> Mapped:
        if self._map is not None:
            self.map_used = True
            return self._map
        handle = self._handle or OsHandle(os.open(self.path, os.O_RDONLY | os.O_CLOEXEC))
        if os.fstat(handle.fd).st_size == 0:
            return b""
        self._map = mmap.mmap(handle.fd, 0, access=mmap.ACCESS_READ)
        self._files.admit_map(self)
        return self._map

    def handle(self) -> OsHandle:
        return self._used_handle()

    def rename(self, path: str) -> None:
        os.rename(self.path, path)
        self.path = path

    def remove(self) -> None:
        self.close()
        self._files.remove(self.path)

    def close(self) -> None:
        self._files.forget(self)
        self._handle = None
        self._map = None

    def drop_handle(self) -> None:
        self._handle = None

    def drop_map(self) -> None:
        self._map = None

    def _used_handle(self, flags: int = 0) -> OsHandle:
        handle = self._handle
        if handle is None:
            # The first use does not count: files that are touched once must not drive out those in steady use.
            return self._open(flags)
        self.used = True
        return handle

    def _open(self, flags: int = 0) -> OsHandle:
        handle = OsHandle(os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | flags, 0o644))
        self._files.admit(self)
        self._handle = handle
        return handle


class OsLock:
    """A lock file, held by flock: it goes with the process, however that ends."""

    def __init__(self, path: str) -> None:
        self._handle = OsHandle(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        fcntl.flock(self._handle.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        fcntl.flock(self._handle.fd, fcntl.LOCK_UN)


def _share_of_descriptors(share: float, most: int) -> int:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(16, min(most, int(soft * share)))


class OsFiles:
    """The operating system's files. A map holds a descriptor of its own, so both limits count against RLIMIT_NOFILE:
    without numbers given, half of it goes to descriptors and an eighth to maps, the rest is left to sockets."""

    def __init__(self, max_open: int | None = None, max_maps: int | None = None) -> None:
        self.max_open = max_open or _share_of_descriptors(0.5, 65_536)
        self.max_maps = max_maps or _share_of_descriptors(0.125, 16_384)
        self._open_files: OrderedDict[OsFile, None] = OrderedDict()
        self._mapped_files: OrderedDict[OsFile, None] = OrderedDict()

    def open(self, path: str) -> OsFile:
        return OsFile(self, path)

    def admit(self, file: OsFile) -> None:
        """Count `file` among the open ones, and let others go that were not used lately."""
        while len(self._open_files) >= self.max_open:
            other, _ = self._open_files.popitem(last=False)
            if other.used:
                other.used = False
                self._open_files[other] = None
            else:
                other.drop_handle()
        self._open_files[file] = None

    def admit_map(self, file: OsFile) -> None:
        while len(self._mapped_files) >= self.max_maps:
            other, _ = self._mapped_files.popitem(last=False)
            if other.map_used:
                other.map_used = False
                self._mapped_files[other] = None
            else:
                other.drop_map()
        self._mapped_files[file] = None

    def forget(self, file: OsFile) -> None:
        self._open_files.pop(file, None)
        self._mapped_files.pop(file, None)

    @property
    def open_count(self) -> int:
        return len(self._open_files)

    @property
    def map_count(self) -> int:
        return len(self._mapped_files)

    def scan(self, path: str) -> dict[str, int]:
        with os.scandir(path) as entries:
            return {entry.name: DIRECTORY if entry.is_dir() else entry.stat().st_size for entry in entries}

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def mkdir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write(self, path: str, data: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def remove_tree(self, path: str) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self, path: str) -> tuple[int, int]:
        volume = os.statvfs(path)
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize

    def lock(self, path: str) -> OsLock:
        return OsLock(path)

    def boot_id(self) -> str:
        try:
            with open(BOOT_ID) as file:
                return file.read().strip()
        except OSError:
            return ""
