"""A file of lines that only grows, rotated by size: what the decision log and the audit log are written to."""

from __future__ import annotations

import os
import threading
from pathlib import Path

MIB = 1024 * 1024


class AppendedFile:
    """Appends whole lines; a write that broke off spoils its own line and none after it.

    Args:
        path: The file; its folder is made when the first line comes.
        mib: Size at which it is rotated.
        kept: Rotated files kept beside it.
    """

    def __init__(self, path: Path, mib: int, kept: int) -> None:
        self._path, self._bytes, self._kept = path, mib * MIB, kept
        self._handle: int | None = None
        self._mutex = threading.Lock()

    def append(self, lines: bytes) -> None:
        """Write lines, each ended by a newline; raises OSError, after which the file is opened anew."""
        with self._mutex:
            try:
                if self._handle is None:
                    self._handle = self._open()
                left = memoryview(lines)
                while left:
                    left = left[os.write(self._handle, left) :]
                if os.lseek(self._handle, 0, os.SEEK_END) >= self._bytes:
                    self._close()
                    self._rotate()
            except OSError:
                self._close()  # the folder may be back next time, the disk less full
                raise

    def rotate(self) -> None:
        """Begin a new file, if there is anything in this one; raises OSError."""
        with self._mutex:
            self._close()
            if self._path.exists() and self._path.stat().st_size:
                self._rotate()

    def close(self) -> None:
        """Let the file go."""
        with self._mutex:
            self._close()

    def _open(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            os.write(handle, b"\n")  # a killed process, or a full disk, left half a line
        return handle

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _rotate(self) -> None:
        """Move the file to .1, .1 to .2 and so on; the oldest falls off."""
        for number in range(self._kept - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self._path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
