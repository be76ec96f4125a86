"""Runs pipeline commands for tasks: each in a process of its own, which is told what it needs and nothing else."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.registry import places

PYTHON = os.environ.get("LOADMASTER_PYTHON", sys.executable)
"""The interpreter of the pipeline's environment; a thin Airflow environment can point it at a fat one."""

STAGES_WITH = os.environ.get("LOADMASTER_STAGES_WITH", "")
"""Put before every command that runs a stage, e.g. ``sudo -n -u trainer``: third-party training code gets a user of its
own, who cannot read the signing key."""

SIGNER_WITH = os.environ.get("LOADMASTER_SIGNER_WITH", "")
"""Put before every command that signs a record, e.g. ``sudo -n -u signer``."""

FOR_THE_SIGNER = ("LOADMASTER_SIGNING_KEY", "LOADMASTER_PUSH_TOKEN_FILE", "LOADMASTER_AIRFLOW_LOGIN_FILE")
"""Where keys and tokens are; no stage is told. Nor is it told Airflow's own settings, the secret of its tokens among
them."""


def lineage(run_id: str, **more: Any) -> dict[str, Any]:
    """Say what an asset comes from: run, commit of the code, hash of the lock."""
    folder = places.workspace(run_id)
    lock = folder / "dvc.lock"
    head = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    sha256 = hashlib.sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None
    return {"run_id": run_id, "code_commit": head.stdout.strip(), "dvc_lock_sha256": sha256, **more}


def call(module: str, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a pipeline command without keys and return the last line it printed; all of it goes to the task's log."""
    known = os.environ.items()
    told = {key: value for key, value in known if key not in FOR_THE_SIGNER and not key.startswith("AIRFLOW__")}
    return _run([*shlex.split(STAGES_WITH), PYTHON, "-m", module, *arguments], {**told, **(env or {})}, cwd)


def signed_call(module: str, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run a pipeline command that signs: in its own process, as its own user if the deployment has one."""
    return _run([*shlex.split(SIGNER_WITH), PYTHON, "-m", module, *arguments], {**os.environ, **(env or {})}, None)


def _run(command: list[str], env: Mapping[str, str], cwd: Path | None) -> str:
    process = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, text=True)
    last = ""
    for line in process.stdout or ():
        print(line, end="", flush=True)  # noqa: T201 - a task's log is its standard output
        last = line.strip() or last
    if code := process.wait():
        raise RuntimeError(f"{shlex.join(command[:4])} ended with exit code {code}; its message is above")
    return last
