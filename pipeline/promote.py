"""Promote: sign the bundle of a run and record that a named person approved it; or record that nobody did.

    python -m pipeline.promote --problem functions --run-dir var/runs/X --run-id X --approver NAME --reason TEXT
    python -m pipeline.promote --reject --problem functions --run-dir var/runs/X --run-id X --approver NAME ...
    python -m pipeline.promote --resign --problem functions --approver NAME --reason "key rotated"

Data and run branch are pushed first, then the signed bundle, and the record last, in one atomic push: whatever is
killed in between, the registry holds either no trace of the promotion or all of it, and running it again ends well.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pipeline.errors import RegistryError
from pipeline.registry import bundles
from pipeline.registry.chain import Chain, append
from pipeline.registry.runs import Run, record_run, refuse_edited
from pipeline.registry.views import describe
from sched_env import problems
from wire.command import Verb, problem_option
from wire.contracts.bundle import Manifest, Verdict
from wire.contracts.record import PromotionRecord
from wire.errors import ConfigError, run_cli


def promote(problem: str, run_dir: Path, *, run_id: str, approver: str, reason: str) -> PromotionRecord:
    """Sign a run's bundle and write the ``approved`` record.

    Args:
        problem: Which of the run's bundles.
        run_dir: The run's clone.
        run_id: The Airflow run id.
        approver: The person who decided; there must be one.
        reason: Their words.
    """
    if not approver.strip():
        raise RegistryError("nobody approved this promotion", "--approver with the name of a person")
    report, manifest = _judged(problem, run_dir)
    if report["outcome"] != "pass":
        raise RegistryError(f"the gate said {report['outcome']}: {report.get('reason', '')}", "pass")
    chain = Chain.open()
    done = _done_before(chain, manifest, run_id)
    if done is not None:
        return done
    _check_still_valid(chain, manifest, report)
    refuse_edited(run_dir, problem)
    run = record_run(run_dir, run_id)
    verdict = Verdict(outcome="pass", reason=str(report.get("reason", "")))
    directory = bundles.finalise(run_dir / "data" / "bundles" / problem, run, verdict)
    pointer = bundles.store(directory)
    sha256 = bundles.files_sha256(directory)

    def decide(chain: Chain) -> PromotionRecord:
        _check_still_valid(chain, manifest, report)
        return chain.next_record(
            **_facts(chain, manifest, report, run),
            state="approved",
            counter=chain.counter(problem) + 1,
            approver=approver.strip(),
            reason=reason or "no comment given",
            bundle_sha256=sha256,
        )

    return append(decide, files={bundles.pointer_of(manifest.digest): pointer})


def reject(problem: str, run_dir: Path, *, run_id: str, approver: str | None, reason: str) -> PromotionRecord:
    """Record that a bundle was turned down, by a person or (``approver`` None) by nobody answering in time."""
    report, manifest = _judged(problem, run_dir)
    refuse_edited(run_dir, problem)
    run = record_run(run_dir, run_id)
    mine = Chain.open().of(problem)
    if mine and (mine[-1].state, mine[-1].run_id, mine[-1].digest) == ("rejected", run_id, manifest.digest):
        return mine[-1]

    def decide(chain: Chain) -> PromotionRecord:
        return chain.next_record(
            **_facts(chain, manifest, report, run),
            state="rejected",
            counter=chain.counter(problem),
            approver=approver,
            reason=reason or ("no comment given" if approver else "nobody answered in time"),
        )

    return append(decide)


def resign(problem: str, *, approver: str, reason: str) -> PromotionRecord:
    """Sign the live bundle anew with the current key: after a rotation, or when the key that signed it was revoked.

    The policy stays the same, but what the service holds changes: so it is approved, counted and pushed like any other.
    """
    if not approver.strip():
        raise RegistryError("nobody approved this signature", "--approver with the name of a person")
    chain = Chain.open()
    live = chain.live(problem)
    if live is None:
        raise RegistryError(f"no policy of {problem} is live", "a bundle to sign")
    directory = bundles.sign_anew(bundles.approved(chain, live, history=True))
    pointer, sha256 = bundles.store(directory), bundles.files_sha256(directory)

    def decide(chain: Chain) -> PromotionRecord:
        now, pending = chain.live(problem), chain.pending(problem)
        if now is None or now.digest != live.digest or pending is not None:
            raise RegistryError(f"another promotion of {problem} came first", fix="look at it, then run this again")
        return chain.follow_up(
            now,
            state="approved",
            counter=chain.counter(problem) + 1,
            previous_digest=now.digest,
            approver=approver.strip(),
            reason=reason or "signed anew",
            bundle_sha256=sha256,
        )

    return append(decide, files={bundles.pointer_of(live.digest): pointer})


def _judged(problem: str, run_dir: Path) -> tuple[dict[str, Any], Manifest]:
    """Read the gate's report and the bundle it is about."""
    path = run_dir / "data" / "gate" / problem / "report.json"
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise RegistryError(f"{path} does not exist", "the report of the gate stage", "run the gate first") from error
    except ValueError as error:
        raise RegistryError(f"{path} is not JSON: {error}", "the report of the gate stage") from error
    manifest = bundles.read_manifest(run_dir / "data" / "bundles" / problem)
    if (manifest.problem, report.get("digest")) != (problem, manifest.digest):
        raise RegistryError(
            f"{path} is about {report.get('digest')}",
            f"{manifest.digest}, the bundle of this run",
            "run the gate again",
        )
    return report, manifest


def _done_before(chain: Chain, manifest: Manifest, run_id: str) -> PromotionRecord | None:
    """Find the record an earlier attempt of this very promotion has written."""
    for record in (chain.pending(manifest.problem), chain.live(manifest.problem)):
        if record is not None and (record.digest, record.run_id) == (manifest.digest, run_id):
            return record
    return None


def _check_still_valid(chain: Chain, manifest: Manifest, report: dict[str, Any]) -> None:
    """Refuse when the world is no longer the one the gate judged and the person approved."""
    pending, live = chain.pending(manifest.problem), chain.live(manifest.problem)
    if pending is not None:
        raise RegistryError(
            f"another promotion of {manifest.problem} came first: record {pending.sequence}, {pending.digest[:19]}, "
            f"approved by {pending.approver} at {pending.decided_at}, is not live yet",
            "one promotion of a problem at a time; nothing of yours was recorded",
            "finish it (python -m pipeline.push, then verify_live), then run the gate against the new champion",
        )
    if live is not None and live.digest == manifest.digest:
        raise RegistryError(f"{manifest.digest} is live already (record {live.sequence})", "another bundle")
    judged_against, champion = report.get("champion_digest"), live.digest if live else None
    if judged_against != champion:
        raise RegistryError(
            f"the gate compared with {judged_against or 'the heuristics'}, but {champion or 'nothing'} is live",
            "a verdict against the policy that is live",
            "nothing was recorded; run evaluate and gate again, in a new run",
        )


def _facts(chain: Chain, manifest: Manifest, report: dict[str, Any], run: Run) -> dict[str, Any]:
    """What records of every kind carry about a run's bundle."""
    return {
        "problem": manifest.problem,
        "digest": manifest.digest,
        "previous_digest": chain.live_digest(manifest.problem),
        "run_id": run.run_id,
        "git_commit": run.commit,
        "dvc_lock_sha256": run.dvc_lock_sha256,
        "data_range": (manifest.lineage.windows_start, manifest.lineage.windows_end),
        "gate": report,
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    problem_option(parser, problems.names())
    parser.add_argument("--run-dir", type=Path, help="the run's clone")
    parser.add_argument("--run-id", help="the run's id; the name of its folder without it")
    parser.add_argument("--approver", default="", help="the person who decided")
    parser.add_argument("--reason", default="", help="their words")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--reject", action="store_true", help="record a rejection")
    instead.add_argument("--resign", action="store_true", help="sign the live bundle anew with the current key")


def run(options: argparse.Namespace) -> int:
    """Write the record that was asked for, and say what it says."""
    problem, approver, reason = options.problem, options.approver, options.reason
    if options.resign:
        record = resign(problem, approver=approver, reason=reason)
    elif options.run_dir is None:
        raise ConfigError("no --run-dir", "the run's clone", "only --resign does without one")
    else:
        run_dir: Path = options.run_dir.absolute()
        run_id = options.run_id or run_dir.name
        if options.reject:
            record = reject(problem, run_dir, run_id=run_id, approver=approver.strip() or None, reason=reason)
        else:
            record = promote(problem, run_dir, run_id=run_id, approver=approver, reason=reason)
    sys.stdout.write(describe(record) + "\n")
    return 0


main = Verb("python -m pipeline.promote", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
