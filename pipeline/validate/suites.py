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
from pipeline.validate.rules import Rule
from pipeline.validate.verdict import Finding
from wire.errors import ConfigError, legal

SUITES_FILE = Path(__file__).with_name("suites.yaml")


class Suites:
    """Suites of all tables; run the tables of a day, then build the day's docs."""

    def __init__(self, examples: int, path: Path = SUITES_FILE) -> None:
        os.environ["GX_ANALYTICS_ENABLED"] = "false"
        logging.getLogger("great_expectations").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="great_expectations")
        import great_expectations as gx

        self._gx: Any = gx
        self._context = self._fresh()
        self._examples = examples
        self._suites = {table: _suite(table, entries) for table, entries in _read(path).items()}

    def _fresh(self) -> Any:
        from great_expectations.data_context.types.base import ProgressBarsConfig

        context = self._gx.get_context(mode="ephemeral")
        context.variables.progress_bars = ProgressBarsConfig(globally=False)
        return context

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
        # Asked for the rows, Great Expectations collects every one that fails: a day without prices took a minute.
        form = {"result_format": "BASIC", "partial_unexpected_count": 0}
        checkpoint = self._context.checkpoints.add(
            gx.Checkpoint(name=name, validation_definitions=[definition], result_format=form)
        )
        outcome = checkpoint.run(batch_parameters={"dataframe": rows})
        # A source keeps the frames it was shown; what is found is kept elsewhere.
        self._context.data_sources.delete(name)
        results = [result for run in outcome.run_results.values() for result in run.results]
        failed = [result for result in results if not result.success]
        return len(results), [_finding(table, day, result, rows, self._examples) for result in failed]

    def rules(self) -> list[Rule]:
        """List what is tried."""
        found = []
        for table, makers in self._suites.items():
            for make in makers:
                config = make().configuration
                about = _about(config.kwargs)
                mostly = config.kwargs.get("mostly", 1.0)
                when = "any row" if mostly == 1.0 else f"more than {1 - mostly:.0%} of rows"
                stops, warns = ("", when) if _is_warning(config) else (when, "")
                found.append(Rule(table, config.type.removeprefix("expect_"), about, stops, warns))
        return found

    def build_docs(self, folder: Path) -> None:
        """Write the Data Docs of what was run since the last ones: what was expected and found, table by table."""
        backend = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder.absolute())}
        index = {"class_name": "DefaultSiteIndexBuilder"}
        site = {"class_name": "SiteBuilder", "site_index_builder": index, "store_backend": backend}
        self._context.add_data_docs_site("windows", site)
        self._context.build_data_docs(site_names=["windows"])
        self._context = self._fresh()


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


def _about(arguments: dict[str, Any]) -> str:
    left_out = ("batch_id", "ignore_row_if")
    return ", ".join(f"{name}={value}" for name, value in arguments.items() if name not in left_out)


def _is_warning(config: Any) -> bool:
    return str(config.severity).lower().endswith("warning")


def _finding(table: str, day: str, result: Any, rows: pd.DataFrame, examples: int) -> Finding:
    config, found = result.expectation_config, result.result or {}
    about = _about(config.kwargs)
    raised = (result.exception_info or {}).get("exception_message")
    message = f"expected {about}"
    if raised:
        message += f"; it could not be tried: {raised}"
    elif "observed_value" in found:
        message += f"; found {found['observed_value']}"
    elif "unexpected_percent" in found:
        message += f"; {found['unexpected_percent']:.3g} % do not comply"
    rule = config.type.removeprefix("expect_")
    broken = rows[_breaking(rule, config.kwargs, rows)].head(examples)
    keys = [*KEYS.get(table, ("window_start", "cluster")), *_columns(config.kwargs)]
    picked = broken[[name for name in dict.fromkeys(keys) if name in broken.columns]]
    return Finding(
        severity="warning" if _is_warning(config) else "error",
        table=table,
        rule=rule,
        day=day,
        count=int(found.get("unexpected_count", 1) or 1),
        message=message,
        examples=[{str(name): _plain(value) for name, value in row.items()} for row in picked.to_dict("records")],
        about=about,
    )


def _columns(arguments: dict[str, Any]) -> list[str]:
    return [str(arguments[name]) for name in ("column", "column_A", "column_B") if name in arguments]


def _breaking(rule: str, arguments: dict[str, Any], rows: pd.DataFrame) -> Any:
    """Tell which rows break a rule, for examples; the rule itself is tried by Great Expectations."""
    none = pd.Series(False, index=rows.index)
    if rule == "compound_columns_to_be_unique":
        return rows.duplicated(arguments["column_list"], keep=False)
    values = rows[arguments["column"]] if "column" in arguments else none
    if rule == "column_values_to_not_be_null":
        return values.isna()
    if rule == "column_values_to_be_between":
        low, high = arguments.get("min_value"), arguments.get("max_value")
        if low is not None:
            none |= values <= low if arguments.get("strict_min") else values < low
        if high is not None:
            none |= values >= high if arguments.get("strict_max") else values > high
        return none
    if rule == "column_values_to_be_in_set":
        return values.notna() & ~values.isin(arguments["value_set"])
    if rule in ("column_values_to_match_regex", "column_values_to_not_match_regex"):
        matches = values.astype("string").str.contains(arguments["regex"], regex=True)
        return (matches if "not" in rule else ~matches).fillna(False).astype(bool)
    if rule == "column_pair_values_a_to_be_greater_than_b":
        larger, smaller = rows[arguments["column_A"]], rows[arguments["column_B"]]
        return larger < smaller if arguments.get("or_equal") else larger <= smaller
    return none


def _plain(value: Any) -> object:
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, int | float | bool | str) and value == value else str(value)  # noqa: PLR0124
