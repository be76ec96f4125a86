"""Settings of the service, read once: from the environment (``LOADMASTER_<FIELD IN CAPITALS>``), else from a file.

The file, named by ``LOADMASTER_CONFIG_FILE``, is YAML with the fields below as keys; the environment goes before it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from sched_env import problems
from wire.contracts.feature_spec import ProblemName
from wire.environment import BELOW_VAR, PREFIX, place, variable
from wire.errors import ConfigError, legal

MIB = 1024 * 1024

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be set; the string under each field says why its default is what it is."""

    store_dir: Path = Path("var") / BELOW_VAR["store_dir"]
    """Policy store, a folder: one process at a time. Defaults follow LOADMASTER_VAR when that is set."""

    store_url: str = ""
    """``s3://bucket/prefix`` in place of the folder: a store that replicas share. Credentials and endpoint come from
    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL and their kin."""

    follow_s: Annotated[float, msgspec.Meta(gt=0)] = 2.0
    """How often a shared store is asked whether another replica changed what is live."""

    trusted_keys_dir: Path = Path("var") / BELOW_VAR["trusted_keys_dir"]
    """Public keys whose signatures count; two at once while a key is rotated."""

    revoked_keys_file: Path = Path("var") / BELOW_VAR["revoked_keys_file"]
    """Keys that no longer count, whatever the folder above still holds."""

    push_token_file: Path = Path("var") / BELOW_VAR["push_token_file"]
    """Tokens and their roles, read at each push and rollback so that they can be rotated. Made when absent."""

    log_dir: Path = Path("var") / BELOW_VAR["log_dir"]
    """Where the decision log and the audit log go, as JSON lines."""

    decision_log: bool = True
    """Off only where another collector records decisions: without it no decision can be walked back."""

    log_file_mib: Positive = 64
    """Size at which the decision log is rotated: about 100,000 decisions, still opened by any editor."""

    log_file_s: Positive = 3600
    """Age at which the decision log is rotated, whatever its size: what ``ingest`` reads is at most so old."""

    log_files: Positive = 200
    """Rotated logs kept, as Parquet: eight days of hourly files; of the largest size about 2 GiB."""

    sampled_every_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """Every so many seconds one decision of each problem is kept whole, with the state it was made from, so that the
    next candidate can be asked what it would have done (docs/nights.md). 0: never."""

    deadline_ms: Annotated[float, msgspec.Meta(gt=0)] = 100.0
    """Time the policy has for one batch before the heuristic answers. A policy needs 0.4 ms for 1,000 candidates; what
    is over is for a machine with more to do than cores. Set it below the timeout of whoever asks."""

    scoring_threads: Positive = 2
    """Policies run beside the event loop, one thread each; onnxruntime itself is held to one thread."""

    batch_rows: Positive = 16_384
    """Candidate rows scored in one run (requests x candidates): bounds memory to some MiB a batch, and how long other
    callers wait for their turn to some ms."""

    shortlist_above: Positive = 10_000
    """Candidates above which the policy sees a shortlist: the best by cheap scores and a random sample. Up to here the
    policy scores all of them in some 4 ms; what the shortlist loses is measured (docs/results/shortlist.md)."""

    shortlist_best: Positive = 256
    """Best candidates of each cheap score that the policy sees."""

    shortlist_sample: Positive = 256
    """Candidates that it sees by chance beside them: what no cheap score can see still has a part in the choice, and
    the policy's picture of all candidates (their mean) stays close to the truth."""

    max_pairs: Positive = 4_000_000
    """Requests x candidates in one call: about four seconds of work; more is refused, not queued."""

    max_body_mib: Positive = 16
    """Largest /v1/place body: 20,000 candidates with every field are 8 MiB."""

    max_values: Positive = 1_000_000
    """Values in one body, counted before it is decoded: 20,000 candidates of fifty fields each."""

    max_answer_mib: Positive = 8
    """Largest answer, reckoned before the work: 1,024 requests with the best five of each are half a MiB."""

    large_calls: Positive = 8
    """Calls above a small size (placement/lane.py) that may be under way; one is worked on, others wait, more get 503.
    With the largest body they hold 128 MiB."""

    max_connections: Positive = 512
    """Open connections; beyond, the one that has waited longest of the peer that has most of them is closed."""

    header_kib: Positive = 32
    """Request line and headers: several times what proxies add."""

    header_timeout_s: Positive = 10
    """For request line and headers to arrive; a client that sends anything sends them at once."""

    body_timeout_s: Positive = 60
    """For a body to arrive, and for an answer to be taken: 100 MiB at 2 MiB/s."""

    max_bundle_mib: Positive = 100
    """Largest pushed bundle; the bundle checker has a cap for each file besides."""

    policy_memory_mib: Positive = 384
    """Memory that a policy may take in its trial, for the largest batch and the largest call; the service holds two."""

    keep_bundles: Annotated[int, msgspec.Meta(ge=2)] = 10
    """Bundles kept on disk for each problem; live and previous always are."""

    trial_timeout_s: Positive = 60
    """A new policy is first loaded in a process of its own; on a busy machine imports alone take seconds."""

    trial_memory_mib: Positive = 4096
    """Address space of that process; onnxruntime maps about 1 GiB before it does anything."""

    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 5.0
    """After SIGTERM: ``/readyz`` says no, everybody is still answered and told to close, then the listener goes. Longer
    than it takes Kubernetes to take a pod out of its endpoints, which is a second or two."""

    retry_s: Positive = 30
    """How often what is not as it should be (a damaged policy, a store that cannot be written) is tried again, and keys
    are asked for again; while it stays so, less and less often, down to every ten minutes."""

    guard_every_s: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """How often arms are compared; the test may be made at any time (placement/guard.py)."""

    guard_slow_ms: Annotated[float, msgspec.Meta(gt=0)] = 25.0
    """An answer above this counts as slow: half of what kube-scheduler's usual extender timeout leaves is more."""

    guard_margin: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.02
    """By how much a canary's rates may be above the live policy's; less cannot be told apart in a day of most
    clusters."""

    guard_most: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.2
    """Rate of fallbacks or missed objectives above which a new policy is left for the one before."""

    probation_s: int = 3600
    """How long after it went live a policy is held to the rate above; 0: never."""

    prometheus_url: str = ""
    """Who is asked which pods met their objective; none: nobody, and the guard goes by fallbacks and latency."""

    sla_query: str = ""
    """PromQL with one series a pod, label ``uid``, between 0 (objective met) and 1 (violated)."""

    sla_after_s: Annotated[float, msgspec.Meta(ge=0)] = 300.0
    """Age at which a pod's objective is read: one window."""

    sla_every_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """How often Prometheus is asked."""

    cool_down_s: Positive = 3600
    """After the service left a policy by itself, no canary is taken for so long: a person looks first."""

    freeze: str = ""
    """Times at which no push is taken, as ``start/end`` in RFC 3339, several with commas between: the end of the year,
    a sale. The way back, to the policy before or to the heuristic, stays open."""

    clusters_file: Path | None = None
    """Which clusters are watched and which adapters answer for them (docs/kubernetes.md); none by default."""

    tls_cert_file: Path | None = None
    """With the two below and ``serve --tls-port``: a second port for kube-scheduler, which must show a certificate."""

    tls_key_file: Path | None = None

    tls_client_ca_file: Path | None = None
    """Authority of the certificates that clients of that port must show."""

    cpn_file: Path | None = None
    """Settings of the job controller (docs/cpn.md); without one /v1/jobs answers 404."""

    fallbacks: dict[str, str] = msgspec.field(default_factory=dict)
    """Problem -> heuristic that answers when its policy cannot, where that is not the problem's own fallback:
    LOADMASTER_FALLBACK_VM=first_fit and so on."""

    def fallback(self, problem: ProblemName) -> str:
        """Return the fallback heuristic of a problem."""
        return self.fallbacks.get(problem) or problems.get(problem).fallback


CONFIG_FILE = variable("config_file")


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings; the error names the variable, what was found and what is legal."""
    filed = _read_file(environ.get(CONFIG_FILE, ""))
    values: dict[str, Any] = dict(filed)
    for name in set(Settings.__struct_fields__) - {"fallbacks"}:
        text = environ.get(variable(name))
        if text is not None:
            values[name] = text
        elif name in BELOW_VAR and name not in filed:
            values[name] = str(place(name, environ))
    given = {problem: environ.get(variable(f"fallback_{problem}")) for problem in problems.names()}
    values["fallbacks"] = dict(filed.get("fallbacks") or {}) | {
        problem: name for problem, name in given.items() if name
    }
    try:
        settings = msgspec.convert(values, Settings, strict=False, dec_hook=_to_path)
        freezes(settings.freeze)
        if settings.prometheus_url and not settings.prometheus_url.startswith(("http://", "https://")):
            raise ValueError(f"{variable('prometheus_url')} is {settings.prometheus_url!r}, expected http(s)://...")  # noqa: TRY301
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(
            f"settings from {CONFIG_FILE + ' and ' if filed else ''}the environment: {error}",
            f"{PREFIX}<FIELD> as docs/service.md lists them",
            "correct or unset the variable, or the line of the file",
        ) from error
    return settings


def _read_file(path: str) -> dict[str, Any]:
    """Read the file of settings; no name, no file."""
    if not path:
        return {}
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())[:300]
        raise ConfigError(f"{CONFIG_FILE} {path!r}: {said}", "a readable YAML file") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds a {type(found).__name__}", "settings by name, e.g. deadline_ms: 50")
    unknown = [str(name) for name in found if name not in Settings.__struct_fields__]
    if unknown:
        raise ConfigError(f"{path} sets {', '.join(sorted(unknown)[:5])}", legal(Settings.__struct_fields__))
    if not isinstance(found.get("fallbacks") or {}, dict):
        raise ConfigError(f"{path}: fallbacks is {found['fallbacks']!r}", "problem: heuristic")
    return found


def freezes(text: str) -> list[tuple[datetime, datetime]]:
    """Read ``LOADMASTER_FREEZE``."""
    found = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        start, _, end = part.partition("/")
        try:
            times = datetime.fromisoformat(start), datetime.fromisoformat(end)
        except ValueError as error:
            raise ValueError(f"{variable('freeze')}: {part!r} is not start/end in RFC 3339") from error
        if any(time.tzinfo is None for time in times) or times[0] >= times[1]:
            raise ValueError(f"{variable('freeze')}: {part!r} has no time zone, or ends before it begins")
        found.append(times)
    return found


def _to_path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str) and value:
        return Path(value)
    raise ValueError(f"expected a {kind.__name__}, found {value!r}")
