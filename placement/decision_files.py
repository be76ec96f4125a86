"""Full files of the decision log become Parquet, each whole or not at all.

A file of lines is removed only when its Parquet file is on disk; a process killed in between makes the same file again,
because its name comes from what is in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import uuid
from pathlib import Path

import msgspec

from wire.contracts.decision import DecisionLine, arrow_schema

TIMEOUT_S = 300.0
NICE = 10
PREFIX, SUFFIX = "decisions-", ".parquet"


def convert_beside(lines: Path, kept: int) -> int:
    """As :func:`convert`, in a process of its own: some seconds of Python that decisions would have to wait for."""
    command = [sys.executable, "-m", "placement.decision_files", str(lines), str(kept)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{lines.name} took longer than {TIMEOUT_S:g} s") from error
    if done.returncode:
        raise OSError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300])
    return int(done.stdout)


def convert(lines: Path, kept: int) -> int:
    """Turn a file of lines into Parquet beside it; returns how many lines could not be read. Raises OSError.

    Args:
        lines: A file that nobody appends to any more.
        kept: Parquet files that stay; older ones go.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = lines.read_bytes()
    decoder, found, lost = msgspec.json.Decoder(DecisionLine), [], 0
    for line in data.splitlines():
        try:
            found.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError):
            lost += bool(line.strip())  # what a killed process left half-written
    if found:
        schema = arrow_schema()
        columns = {name: [getattr(one, name) for one in found] for name in schema.names if hasattr(found[0], name)}
        columns["time"] = [_microseconds(one.at) for one in found]
        columns["top"] = [[name for name, _ in one.top] for one in found]
        columns["scores"] = [[score for _, score in one.top] for one in found]
        table = pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
        moment = "".join(character for character in found[0].at[:23] if character.isalnum())
        target = lines.with_name(f"{PREFIX}{moment}-{hashlib.sha256(data).hexdigest()[:8]}{SUFFIX}")
        scratch = target.with_suffix(f".{uuid.uuid4().hex}.new")
        try:
            pq.write_table(table, scratch, compression="zstd")
            with scratch.open("rb") as file:
                os.fsync(file.fileno())
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)
    lines.unlink()
    for old in sorted(lines.parent.glob(f"{PREFIX}*{SUFFIX}"))[:-kept]:
        old.unlink(missing_ok=True)
    return lost


def _microseconds(text: str) -> int:
    from datetime import datetime

    return round(datetime.fromisoformat(text).timestamp() * 1e6)


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(NICE)
    sys.stdout.write(f"{convert(Path(sys.argv[1]), int(sys.argv[2]))}\n")
