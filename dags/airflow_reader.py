"""Gives a pipeline command the means to ask this Airflow: its address, and a token for a minute."""

from __future__ import annotations

import os

from pipeline.airflow_answers import LOGIN_ENV, TOKEN_ENV
from pipeline.registry.shown import URL_ENV

GOOD_FOR_S = 60


def url() -> str:
    """Return the address of this Airflow."""
    from airflow.configuration import conf

    return os.environ.get(URL_ENV) or str(conf.get_mandatory_value("api", "base_url"))


def reader(role: str = "VIEWER") -> dict[str, str]:
    """Return the environment for :mod:`pipeline.airflow_answers`; a log-in that the deployment names goes first.

    Args:
        role: What the token is good for: ``VIEWER`` reads answers, ``USER`` may write notes and start runs.
    """
    address = {URL_ENV: url()}
    if os.environ.get(LOGIN_ENV):
        return address
    # Airflow lets no task read the answer of another (the SDK's call is the triggerer's alone), so we ask as a user.
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    manager = create_auth_manager()
    if not isinstance(manager, SimpleAuthManager):
        raise TypeError(f"{type(manager).__name__} gives tasks no token: set {LOGIN_ENV} to a viewer's log-in")
    user = SimpleAuthManagerUser(username="loadmaster-promote", role=role)
    return {**address, TOKEN_ENV: manager.generate_jwt(user, expiration_time_in_seconds=GOOD_FOR_S)}
