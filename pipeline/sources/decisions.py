"""The placement service's own decisions: the Parquet files that its log is rotated into."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.contracts.raw import DECISIONS
from pipeline.errors import SourceError
from pipeline.sources import Rows, Tally
from pipeline.sources.files import FileSource
from wire.contracts.decision import PARQUET_VERSION, VERSION_KEY, arrow_schema


class DecisionsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files of the log."""

    paths: list[str]
    """Files or patterns, e.g. ``var/log/decisions/decisions-*.parquet``."""
    cluster: str = "default"
    """Cluster that the service decides for."""


class DecisionsSource(FileSource):
    """One chunk a file."""

    def __init__(self, config: DecisionsConfig, days: Sequence[date]) -> None:
        super().__init__(config.paths, days, "ingest.decisions")
        self._cluster = config.cluster

    def settings(self) -> dict[str, object]:
        """Name files, days and the cluster."""
        return {**super().settings(), "cluster": self._cluster}

    def read(self, path: Path, _tally: Tally) -> Rows:
        """Read one file, whose columns must be those of the contract."""
        try:
            table = pq.read_table(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise SourceError(f"{path}: {error}", "a Parquet file of the decision log") from error
        version = (table.schema.metadata or {}).get(VERSION_KEY)
        if version != PARQUET_VERSION or not table.schema.equals(arrow_schema()):
            found = f"{path} has version {version!r} and columns {table.schema.names}"
            raise SourceError(found[:400], f"version {PARQUET_VERSION!r} of the decision log")
        rows = table.add_column(1, DECISIONS.field("cluster"), pa.repeat(self._cluster, len(table)))
        yield "decisions", rows.cast(DECISIONS)
