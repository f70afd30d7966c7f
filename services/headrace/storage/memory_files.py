"""A file system in memory that knows what was made durable: for tests and for the simulation.

Bytes are durable after `sync`, names after `sync_dir` (`write` syncs its bytes). `crash` turns the clock back to what a
disk could hold after the power went: of the writes to a file since its last sync, and of the names changed in each
directory since its last sync, some first ones are kept, the last kept write torn anywhere. A process that is killed
(and not its machine) loses nothing: open the same `MemoryFiles` again.

Faults: set `before` to a function of (operation, path); it may raise OSError (EIO, ENOSPC, EROFS), or `Crash`, at any
call that changes something. `capacity` fills the disk: the write that passes it is cut short and raises ENOSPC.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable
from random import Random

from headrace.storage.files import DIRECTORY, Data


class Crash(BaseException):
    """The machine stops here. Not an Exception: no handler may carry on after it."""


class _Node:
    """A file's bytes, the durable ones, and the changes since."""

    __slots__ = ("changes", "data", "durable")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.changes: list[int | bytes] = []
        """In order: bytes that were appended, or a size the file was truncated to."""

    def append(self, data: Data) -> None:
        self.data += data
        self.changes.append(bytes(data))

    def truncate(self, size: int) -> None:
        _resize(self.data, size)
        self.changes.append(size)

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.changes.clear()

    def survive(self, random: Random | None) -> None:
        """Keep what a disk could hold; without `random`, only what was synced."""
        content = bytearray(self.durable)
        kept = random.randint(0, len(self.changes)) if random else 0
        for number, change in enumerate(self.changes[:kept], 1):
            if isinstance(change, int):
                _resize(content, change)
            elif random and number == kept:
                content += _torn(change, random)
            else:
                content += change
        self.data = content
        self.sync()


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _torn(data: bytes, random: Random) -> bytes:
    kept = random.randint(0, len(data))
    # A file system may have grown the file without having written the blocks: zeros where the data should be.
    return data[:kept] + bytes(len(data) - kept) if random.random() < 0.3 else data[:kept]


class _Folder:
    """A directory's durable names. It stays the same one when it is renamed, and takes what is in it along."""

    __slots__ = ("names",)

    def __init__(self) -> None:
        self.names: dict[str, _Node | _Folder] = {}


_NameChange = list[tuple[_Folder, str, _Node | _Folder | None]]
"""What happens to names at once: (where, name, what it means from now on)."""


class MemoryHandle:
    """See `files.Handle`; there is no descriptor to send from."""

    __slots__ = ("_node",)

    def __init__(self, node: _Node) -> None:
        self._node = node

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a file in memory has no descriptor")

    def pread(self, length: int, position: int) -> bytes:
        return bytes(self._node.data[position : position + length])


class MemoryFile:
    """See `files.File`."""

    __slots__ = ("_files", "path")

    def __init__(self, files: MemoryFiles, path: str) -> None:
        self._files = files
        self.path = path

    def append(self, data: Data) -> None:
        self._files.append(self.path, data)

    def pread(self, length: int, position: int) -> bytes:
        self._files.reads.append((self.path, length, position))
        return bytes(self._files.node(self.path).data[position : position + length])

    def pread_into(self, buffer: memoryview, position: int) -> int:
        data = self.pread(len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def size(self) -> int:
        return len(self._files.node(self.path).data)

    def truncate(self, size: int) -> None:
        self._files.change("truncate", self.path)
        self._files.node(self.path, create=True).truncate(size)

    def sync(self) -> None:
        self._files.change("sync", self.path)
        self._files.node(self.path).sync()

    def map(self) -> bytes:
        return bytes(self._files.node(self.path).data)

    def handle(self) -> MemoryHandle:
        return MemoryHandle(self._files.node(self.path))

    def rename(self, path: str) -> None:
        self._files.rename(self.path, path)
        self.path = path

    def remove(self) -> None:
        self._files.remove(self.path)

    def close(self) -> None:
        return


class MemoryLock:
    """See `files.Lock`."""

    def __init__(self, files: MemoryFiles, path: str) -> None:
        self._files, self._path = files, path

    def release(self) -> None:
        self._files.locks.discard(self._path)


class MemoryFiles:
    """See `files.Files` and the module's docstring."""

    def __init__(self) -> None:
        self.before: Callable[[str, str], None] | None = None
        self.capacity: int | None = None
        self.reads: list[tuple[str, int, int]] = []
        """Every `pread` of a file: (path, length, position)."""
        self.locks: set[str] = set()
        self.boots = 1
        """How often the machine was started."""
        self._root = _Folder()
        self._names: dict[str, _Node | _Folder] = {"/": self._root}
        """Every path as of now."""
        self._name_changes: list[_NameChange] = []
        """Since the folders' last syncs, in order."""

    # -- faults --------------------------------------------------------------------------------------------------

    def change(self, operation: str, path: str) -> None:
        if self.before is not None:
            self.before(operation, path)

    def crash(self, random: Random | None = None) -> None:
        """The power went and came back. Without `random` only what is durable is left, with it perhaps more."""
        self.boots += 1
        for change in self._surviving_names(random) if random else ():
            _apply(change)
        self._name_changes.clear()
        self._names = {"/": self._root}
        self._read_durable("/", self._root)
        for node in {id(node): node for node in self._names.values() if isinstance(node, _Node)}.values():
            node.survive(random)
        self.before = None
        self.locks.clear()

    def _read_durable(self, path: str, folder: _Folder) -> None:
        for name, node in folder.names.items():
            self._names[posixpath.join(path, name)] = node
            if isinstance(node, _Folder):
                self._read_durable(posixpath.join(path, name), node)

    def _surviving_names(self, random: Random) -> list[_NameChange]:
        """Of each directory the first few changes: nothing orders those of different ones."""
        counts: dict[_Folder, int] = {}
        for change in self._name_changes:
            counts[change[0][0]] = counts.get(change[0][0], 0) + 1
        left = {folder: random.randint(0, count) for folder, count in counts.items()}
        kept = []
        for change in self._name_changes:
            left[change[0][0]] -= 1
            if left[change[0][0]] >= 0:
                kept.append(change)
        return kept

    # -- names ---------------------------------------------------------------------------------------------------

    def node(self, path: str, *, create: bool = False) -> _Node:
        node = self._names.get(path)
        if isinstance(node, _Folder):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = _Node()
            self._link(path, node)
        return node

    def _link(self, path: str, node: _Node | _Folder) -> None:
        self._name_changes.append([(*self._place(path), node)])
        self._names[path] = node

    def _place(self, path: str) -> tuple[_Folder, str]:
        """The directory that a path's last name is in, and that name."""
        parent, name = posixpath.split(path)
        folder = self._names.get(parent)
        if not isinstance(folder, _Folder):
            raise FileNotFoundError(errno.ENOENT, "no such directory", parent)
        return folder, name

    def open(self, path: str) -> MemoryFile:
        return MemoryFile(self, path)

    def scan(self, path: str) -> dict[str, int]:
        if not isinstance(self._names.get(path), _Folder):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        return {
            posixpath.basename(name): len(node.data) if isinstance(node, _Node) else DIRECTORY
            for name, node in self._names.items()
            if posixpath.dirname(name) == path and name != path
        }

    def paths(self) -> list[str]:
        """Every file."""
        return sorted(name for name, node in self._names.items() if isinstance(node, _Node))

    def exists(self, path: str) -> bool:
        return path in self._names

    def mkdir(self, path: str) -> None:
        if path in self._names:
            return
        self.mkdir(posixpath.dirname(path))
        self.change("mkdir", path)
        self._link(path, _Folder())

    def read(self, path: str) -> bytes:
        return bytes(self.node(path).data)

    def append(self, path: str, data: Data) -> None:
        node = self.node(path, create=True)
        try:
            self.change("append", path)
        except Crash:
            node.append(memoryview(data)[: len(data) // 2])
            raise
        if self.capacity is not None:
            room = max(0, self.capacity - self.used())
            if len(data) > room:
                node.append(memoryview(data)[:room])
                raise OSError(errno.ENOSPC, "no space left on device", path)
        node.append(data)

    def write(self, path: str, data: bytes) -> None:
        self.change("write", path)
        node = self.node(path, create=True)
        node.truncate(0)
        self.append(path, data)
        node.sync()

    def rename(self, old: str, new: str) -> None:
        self.change("rename", old)
        if old not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self._name_changes.append([(*self._place(old), None), (*self._place(new), self._names[old])])
        for name in [name for name in self._names if name == old or name.startswith(f"{old}/")]:
            self._names[new + name[len(old) :]] = self._names.pop(name)

    def remove(self, path: str) -> None:
        if path in self._names:
            self.change("remove", path)
            self._name_changes.append([(*self._place(path), None)])
            del self._names[path]

    def remove_tree(self, path: str) -> None:
        for name in sorted((n for n in self._names if n == path or n.startswith(f"{path}/")), reverse=True):
            self.remove(name)

    def sync_dir(self, path: str) -> None:
        self.change("sync_dir", path)
        synced = self._names.get(path)
        if not isinstance(synced, _Folder):
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        # A directory's own name is made durable with its parent's, or with the first sync inside of it.
        above = set()
        while path != "/":
            above.add(self._place(path))
            path = posixpath.dirname(path)
        waiting = []
        for change in self._name_changes:
            if change[0][0] is synced or any((folder, name) in above for folder, name, _ in change):
                _apply(change)
            else:
                waiting.append(change)
        self._name_changes = waiting

    def space(self, path: str) -> tuple[int, int]:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        total = self.capacity or 1 << 40
        return total, max(0, total - self.used())

    def used(self) -> int:
        return sum(len(node.data) for node in self._names.values() if isinstance(node, _Node))

    def boot_id(self) -> str:
        return f"boot {self.boots}"

    def lock(self, path: str) -> MemoryLock:
        if path in self.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked by another process", path)
        self.locks.add(path)
        return MemoryLock(self, path)


def _apply(change: _NameChange) -> None:
    """Makes it durable."""
    for folder, name, node in change:
        if node is None:
            folder.names.pop(name, None)
        else:
            folder.names[name] = node
