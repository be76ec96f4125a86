"""Writes the committed form of the contracts: ``make contracts`` after a deliberate change."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from pipeline.contracts import evaluation, gate, raw, shadow, windows
from wire.command import Verb
from wire.contracts import bundle, decision, feature_spec, models, place, policies, record, replay, sample, snapshot
from wire.errors import run_cli

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "contracts"

DOCUMENTS: dict[str, type[msgspec.Struct]] = {
    "feature-spec": feature_spec.FeatureSpec,
    "bundle-manifest": bundle.Manifest,
    "place-request": place.PlaceRequest,
    "place-response": place.PlaceResponse,
    "model-request": models.ModelRequest,
    "model-response": models.ModelResponse,
    "policies": policies.Policies,
    "flipped": policies.Flipped,
    "refusal": policies.Refusal,
    "decision-line": decision.DecisionLine,
    "sampled-line": sample.SampledLine,
    "snapshot": snapshot.Snapshot,
    "promotion-record": record.PromotionRecord,
    "gate-report": gate.GateReport,
    "shadowed": shadow.Shadowed,
    "integrity": evaluation.Integrity,
    "backtest": evaluation.Backtest,
}


def contracts() -> dict[str, Any]:
    """Every contract by file name: JSON Schema for documents, columns and types for tables."""

    def columns(schemas: dict[str, Any]) -> dict[str, dict[str, str]]:
        return {
            table: {field.name: f"{field.type}{'' if field.nullable else ', required'}" for field in schema}
            for table, schema in schemas.items()
        }

    tables = {
        "raw-tables": columns(raw.TABLES),
        "window-tables": columns(windows.TABLES),
        "evaluation-episodes": columns({"episodes": evaluation.EPISODES}),
        "replay": {"replay": replay.COLUMNS},
    }
    documents = {name: msgspec.json.schema(kind, schema_hook=_anything) for name, kind in DOCUMENTS.items()}
    return documents | tables


def _anything(_kind: type) -> dict[str, Any]:
    """Schema of a free-form value (parameters, settings)."""
    return {"description": "any JSON value"}


def render(contract: Any) -> bytes:
    """Format a contract so that a change is a readable diff."""
    return msgspec.json.format(msgspec.json.encode(contract, order="sorted"), indent=2) + b"\n"


def arguments(_: argparse.ArgumentParser) -> None:
    """Take nothing."""


def run(_: argparse.Namespace) -> int:
    """Write docs/contracts."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, contract in contracts().items():
        (FOLDER / f"{name}.json").write_bytes(render(contract))
    return 0


main = Verb("python -m pipeline.contracts", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
