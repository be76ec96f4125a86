"""GPU jobs of the computing power network.

loadmaster jobs submit train.yaml [more.yaml …] [--tenant team-a] [--url http://127.0.0.1:8100]
loadmaster jobs list [--state waiting,running] [--json]
loadmaster jobs logs ID
loadmaster jobs cancel ID
loadmaster jobs generate --count 20 --seed 1 > queue.yaml
loadmaster jobs report --store sqlite:///var/cpn/jobs.db [--json]
loadmaster jobs profiles --store sqlite:///var/cpn/jobs.db --topology network.yaml --out profiles/finished.csv
loadmaster jobs benchmark --config cpn.yaml --image registry/loadmaster-workload:1
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import yaml

from placement.cpn.states import STATES
from wire.command import Verb, json_option, seed_option
from wire.contracts.policies import Refusal
from wire.errors import ConfigError, LoadmasterError, legal, run_cli

TIMEOUT_S = 30.0


class JobsError(LoadmasterError):
    """Raised when the service refuses, or does not answer."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text)
        if name in ("submit", "list", "logs", "cancel"):
            one.add_argument("--url", default="http://127.0.0.1:8100", help="address of the placement service")
        return one

    submit = command("submit", "submit Kubernetes Jobs; a file may hold several, and - is standard input")
    submit.add_argument("files", nargs="+")
    submit.add_argument("--tenant", help="whose quota they count against")
    listing = command("list", "list jobs, newest first")
    listing.add_argument("--tenant")
    listing.add_argument("--state", help=f"several with commas: {', '.join(STATES)}")
    listing.add_argument("--limit", type=int, default=50)
    json_option(listing, "the jobs")
    for name, text in (("logs", "print the end of a job's log"), ("cancel", "withdraw a job, wherever it is")):
        command(name, text).add_argument("id")
    generate = command("generate", "write a random queue, as YAML")
    generate.add_argument("--count", type=int, default=20)
    generate.add_argument("--data-gb", type=float, default=10.0, help="mean size of a job's data")
    seed_option(generate, "the queue")
    report = command("report", "say from a controller's store what went well, what waited and why")
    report.add_argument("--store", default="sqlite:///var/cpn/jobs.db")
    json_option(report, "the figures")
    profiles = command("profiles", "write what finished jobs measured, for the next fit of the runtime model")
    profiles.add_argument("--store", default="sqlite:///var/cpn/jobs.db")
    profiles.add_argument("--topology", required=True, help="the file or address that the controller reads")
    profiles.add_argument("--out", type=Path, help="a CSV (default: standard output)")
    benchmark = command("benchmark", "measure the fingerprint of a card of each type that has none, by a Job on it")
    benchmark.add_argument("--config", type=Path, required=True, help="the controller's file")
    benchmark.add_argument("--image", required=True, help="built from docker/workload.Dockerfile")
    benchmark.add_argument("--card", action="append", default=[], metavar="CLUSTER/NODE/gpuN", help="this card instead")
    benchmark.add_argument("--seconds", type=int, default=600, help="each of three models runs (default: %(default)s)")
    benchmark.add_argument("--template", type=Path, default=Path("deploy/benchmark-job.yaml"))


def run(options: argparse.Namespace) -> int:
    """Do what was asked."""
    done: int = {
        "submit": _submit, "list": _list, "logs": _logs, "cancel": _cancel, "generate": _generate, "report": _report,
        "profiles": _profiles, "benchmark": _benchmark,
    }[options.command](options)  # fmt: skip
    return done


def _submit(options: argparse.Namespace) -> int:
    failed = 0
    headers = {"Content-Type": "application/yaml"} | ({"X-Tenant": options.tenant} if options.tenant else {})
    for name in options.files:
        try:
            text = sys.stdin.read() if name == "-" else Path(name).read_text()
            documents = [one for one in yaml.safe_load_all(text) if one is not None]
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{name}: {' '.join(str(error).split())}", "a file of Kubernetes Jobs") from error
        for number, document in enumerate(documents, 1):
            where = name if len(documents) == 1 else f"{name} ({number})"
            try:
                answer = msgspec.json.decode(
                    _call(options.url, "POST", "/v1/jobs", msgspec.json.encode(document), headers)
                )
            except JobsError as error:
                failed += 1
                sys.stderr.write(f"{where}: {error}\n")
                continue
            job = answer["job"]
            sys.stdout.write(f"{job['id']}  {job['name']}  {job['state']}{'' if answer['new'] else '  (was there)'}\n")
    return 1 if failed else 0


def _list(options: argparse.Namespace) -> int:
    asked = {"tenant": options.tenant, "state": options.state, "limit": options.limit}
    query = urllib.parse.urlencode({name: value for name, value in asked.items() if value})
    answer = msgspec.json.decode(_call(options.url, "GET", f"/v1/jobs?{query}"))
    if options.json:
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
        return 0
    for job in answer["jobs"]:
        place = job["card"] or "-"
        sys.stdout.write(f"{job['id']}  {job['state']:<12}  {job['tenant']}/{job['name']}  {job['model']}  {place}\n")
    counts = ", ".join(f"{count} {state}" for state, count in sorted(answer["counts"].items()))
    sys.stdout.write(f"in all: {counts or 'none'}\n")
    return 0


def _logs(options: argparse.Namespace) -> int:
    sys.stdout.write(_call(options.url, "GET", f"/v1/jobs/{urllib.parse.quote(options.id, safe='')}/logs").decode())
    return 0


def _cancel(options: argparse.Namespace) -> int:
    job = msgspec.json.decode(_call(options.url, "DELETE", f"/v1/jobs/{urllib.parse.quote(options.id, safe='')}"))
    sys.stdout.write(f"{job['id']}  {job['name']}  {'cancelling' if job['cancelling'] else job['state']}\n")
    return 0


def _generate(options: argparse.Namespace) -> int:
    from placement.cpn.generate import Kind, queue
    from sched_env.jobs.synthetic import MODELS

    if options.count < 1:
        raise ConfigError(f"--count is {options.count}", "at least 1")
    kinds = [Kind(model.name, model.epochs, model.gpu_mem * 1024.0, model.weight) for model in MODELS]
    drawn = queue(options.count, kinds, seed=options.seed, data_gb=options.data_gb)
    yaml.safe_dump_all(drawn, sys.stdout, sort_keys=False)
    return 0


def _report(options: argparse.Namespace) -> int:
    from placement.cpn import report
    from placement.cpn.store import read_only

    with read_only(options.store) as store:
        jobs, attempts, _ = store.everything()
    if options.json:
        sys.stdout.write(msgspec.json.encode(report.figures(jobs, attempts)).decode() + "\n")
    else:
        sys.stdout.write(report.text(jobs, attempts))
    return 0


def _profiles(options: argparse.Namespace) -> int:
    from placement.cpn import profiles
    from placement.cpn.store import read_only
    from placement.cpn.topology import Source
    from sched_env.jobs.finished import write_profiles

    network = Source(options.topology).read()
    with read_only(options.store) as store:
        jobs, attempts, _ = store.everything()
    found = profiles.measured(jobs, attempts, {name: card.type for name, card in network.cards.items()})
    text = write_profiles(found)
    if options.out is None:
        sys.stdout.write(text)
        return 0
    unfinished = options.out.with_suffix(".tmp")
    unfinished.write_text(text)
    unfinished.replace(options.out)
    sys.stdout.write(f"{options.out}: {len(found)} sets of {len(attempts)} attempts\n")
    return 0


def _benchmark(options: argparse.Namespace) -> int:
    from placement.cpn import benchmark, config
    from placement.cpn.gateway import KubeGateway
    from placement.cpn.store import is_there, read_only
    from placement.cpn.topology import Card, Source
    from placement.kube.clusters import connect
    from placement.kube.config import ClusterSettings
    from sched_env.jobs import fingerprints

    settings, template = config.load(options.config), fingerprints.template(options.template)
    network = Source(settings.topology).read()
    # Cards may well be measured before a controller has ever run: then none of them has a job.
    opened = read_only(settings.store) if is_there(settings.store) else contextlib.nullcontext()
    with opened as store:
        cards = benchmark.choose(network, store, options.card, settings.fingerprints)
        if not cards:
            sys.stderr.write("every type of card has a fingerprint, or no card of it is free\n")
            return 0
        gateways = {
            name: KubeGateway(connect(name, ClusterSettings(one.kubeconfig, one.context)), one.namespace)
            for name, one in network.clusters.items()
            if name in {card.cluster for card in cards}
        }

        def job_of(card: Card, name: str) -> dict[str, object]:
            return fingerprints.benchmark_job(
                template, name=name, node=card.node, card=card.number, image=options.image, seconds=options.seconds
            )

        def came(card: Card, since: float) -> bool:
            if store is None:
                return False
            running = (attempt.card for attempt in store.open_attempts())
            return card.name in running or bool(store.shared_cards_with(card.name, since))

        patience_s = benchmark.START_S + benchmark.MODELS * options.seconds
        found = benchmark.measure(cards, gateways, job_of, came=came, patience_s=patience_s, report=_say)
    measured = {kind: {name: round(s, 6) for name, s in one.seconds.items()} for kind, one in found.items()}
    yaml.safe_dump({"fingerprints": {**settings.fingerprints, **measured}}, sys.stdout, sort_keys=True)
    return 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def _call(url: str, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    address = url.rstrip("/") + path
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"--url is {url!r}", legal(("http://…", "https://…")))
    request = urllib.request.Request(address, body, headers or {}, method=method)  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            content: bytes = answer.read()
    except urllib.error.HTTPError as error:
        raise JobsError(_refusal(error.read(), error.code)) from error
    except OSError as error:
        raise JobsError(f"{url} does not answer: {error}", "a running service", "see --url") from error
    return content


def _refusal(content: bytes, code: int) -> str:
    try:
        said: Any = msgspec.json.decode(content, type=Refusal).error
    except msgspec.DecodeError:
        said = "an answer that is not the service's"
    return f"{code}: {said}"


main = Verb("loadmaster jobs", __doc__, arguments, run)


if __name__ == "__main__":
    run_cli(main)
