"""Plain JSON calls to an API server, with the client library's way to log in and without its models."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
from kubernetes.client import ApiClient, ApiException

NOT_FOUND, CONFLICT = 404, 409
TIMEOUT_S = (5.0, 10.0)


class Rest:
    """Calls of one API server."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def get(self, path: str, *, missing_ok: bool = False) -> Any:
        """Read an object; None when it is not there and that is fine."""
        try:
            return self._call("GET", path)
        except ApiException as error:
            if missing_ok and error.status == NOT_FOUND:
                return None
            raise

    def post(self, path: str, body: object) -> Any:
        """Make an object; None when somebody made it first."""
        return self._unless_lost("POST", path, body)

    def put(self, path: str, body: object) -> Any:
        """Replace an object; None when it changed since it was read."""
        return self._unless_lost("PUT", path, body)

    def delete(self, path: str, body: object = None) -> None:
        """Delete an object; one that is not there is as good."""
        try:
            self._call("DELETE", path, body)
        except ApiException as error:
            if error.status != NOT_FOUND:
                raise

    def server_time(self) -> float:
        """Return the seconds since 1970 by the API server's clock, which is what ages are counted by."""
        answer = self._ask("GET", "/version", None, "application/json")
        try:
            answer.read()
            return parsedate_to_datetime(answer.headers["Date"]).timestamp()
        finally:
            answer.release_conn()

    def patch(self, path: str, operations: list[dict[str, Any]]) -> Any:
        """Apply a JSON patch; raises ApiException 422 when a ``test`` in it does not hold."""
        return self._call("PATCH", path, operations, "application/json-patch+json")

    def _unless_lost(self, method: str, path: str, body: object) -> Any:
        try:
            return self._call(method, path, body)
        except ApiException as error:
            if error.status == CONFLICT:
                return None
            raise

    def _call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        answer = self._ask(method, path, body, kind)
        try:
            return msgspec.json.decode(answer.read())
        finally:
            answer.release_conn()  # read to its end, or each call would open a new connection

    def _ask(self, method: str, path: str, body: object, kind: str) -> Any:
        return self._client.call_api(
            path,
            method,
            body=body,
            header_params={"Accept": "application/json", "Content-Type": kind},
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
            _request_timeout=TIMEOUT_S,
        )
