"""Great Expectations, kept at arm's length: suites from YAML in, findings out.

The package takes some eight seconds to import, so it is imported once, here, when the first suite runs.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from pipeline.contracts.windows import KEYS, TABLES
from pipeline.validate.verdict import Finding
from wire.errors import ConfigError, legal

SUITES_FILE = Path(__file__).with_name("suites.yaml")


class Suites:
    """Suites of all tables in one context; run a table and day at a time, then build the docs."""

    def __init__(self, examples: int, path: Path = SUITES_FILE) -> None:
        os.environ["GX_ANALYTICS_ENABLED"] = "false"
        logging.getLogger("great_expectations").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="great_expectations")
        import great_expectations as gx
        from great_expectations.data_context.types.base import ProgressBarsConfig

        self._gx: Any = gx
        self._context: Any = gx.get_context(mode="ephemeral")
        self._context.variables.progress_bars = ProgressBarsConfig(globally=False)
        self._examples = examples
        self._suites = {table: _suite(table, entries) for table, entries in _read(path).items()}

    def run(self, table: str, day: str, rows: pd.DataFrame) -> tuple[int, list[Finding]]:
        """Run the suite of one table on one day's rows; returns how many rules were tried, and which did not hold."""
        gx, name = self._gx, f"{table} {day}"
        source = self._context.data_sources.add_pandas(name)
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("day")
        suite = self._context.suites.add(
            gx.ExpectationSuite(name=name, expectations=[make() for make in self._suites[table]])
        )
        definition = self._context.validation_definitions.add(
            gx.ValidationDefinition(name=name, data=batch, suite=suite)
        )
        form = {
            "result_format": "SUMMARY",
            "partial_unexpected_count": self._examples,
            "unexpected_index_column_names": list(KEYS.get(table, ("window_start", "cluster"))),
        }
        checkpoint = self._context.checkpoints.add(
            gx.Checkpoint(name=name, validation_definitions=[definition], result_format=form)
        )
        outcome = checkpoint.run(batch_parameters={"dataframe": rows})
        # A source keeps the frames it was shown; what is found is kept elsewhere.
        self._context.data_sources.delete(name)
        results = [result for run in outcome.run_results.values() for result in run.results]
        return len(results), [_finding(table, day, result) for result in results if not result.success]

    def build_docs(self, folder: Path) -> None:
        """Write the Data Docs: every table and day, with what was expected and found."""
        backend = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.absolute())}
        index = {"class_name": "DefaultSiteIndexBuilder"}
        site = {"class_name": "SiteBuilder", "site_index_builder": index, "store_backend": backend}
        self._context.add_data_docs_site("windows", site)
        self._context.build_data_docs(site_names=["windows"])


def _read(path: Path) -> dict[str, list[dict[str, dict[str, Any]]]]:
    document = yaml.safe_load(path.read_text())
    if not isinstance(document, dict) or set(document) != set(TABLES):
        found = sorted(document) if isinstance(document, dict) else document
        raise ConfigError(f"{path}: tables {found}", f"{sorted(TABLES)}")
    return document


def _suite(table: str, entries: list[dict[str, dict[str, Any]]]) -> list[Any]:
    """Makers of a table's expectations: those of the file, and unique keys from the contract."""
    gxe: Any = importlib.import_module("great_expectations.expectations")
    makers = []
    if table in KEYS:
        makers.append(_maker(gxe.ExpectCompoundColumnsToBeUnique, {"column_list": list(KEYS[table])}))
    for entry in entries:
        ((name, arguments),) = entry.items()
        kind = getattr(gxe, "Expect" + "".join(part.capitalize() for part in name.split("_")), None)
        if kind is None:
            known = sorted(item for item in dir(gxe) if item.startswith("Expect"))
            raise ConfigError(f"suites.yaml: {table}: {name!r} is no expectation", legal(known))
        if "pair" in name:
            arguments = {"ignore_row_if": "either_value_is_missing", **arguments}
        makers.append(_maker(kind, arguments))
    return makers


def _maker(kind: Any, arguments: dict[str, Any]) -> Any:
    # An expectation belongs to one suite, so each day's suite gets its own.
    return lambda: kind(**arguments)


def _finding(table: str, day: str, result: Any) -> Finding:
    config, found = result.expectation_config, result.result or {}
    arguments = {name: value for name, value in config.kwargs.items() if name not in ("batch_id", "ignore_row_if")}
    expected = ", ".join(f"{name}={value}" for name, value in arguments.items())
    raised = (result.exception_info or {}).get("exception_message")
    message = f"expected {expected}"
    if raised:
        message += f"; it could not be tried: {raised}"
    elif "observed_value" in found:
        message += f"; found {found['observed_value']}"
    elif "unexpected_percent" in found:
        message += f"; {found['unexpected_percent']:.3g} % do not comply"
    rows = found.get("partial_unexpected_index_list") or []
    return Finding(
        severity="warning" if str(config.severity).lower().endswith("warning") else "error",
        table=table,
        rule=config.type.removeprefix("expect_"),
        day=day,
        count=int(found.get("unexpected_count", 1) or 1),
        message=message,
        examples=[{str(name): _plain(value) for name, value in row.items()} for row in rows],
    )


def _plain(value: Any) -> object:
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, int | float | bool | str) and value == value else str(value)  # noqa: PLR0124
