"""Further models of the live bundles, asked by who feeds ``/v1/place``: what they answer is what training saw."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from placement import lane, service
from placement.api import bodies
from placement.api.routes import Group
from placement.errors import PlaceRefusedError
from wire.contracts.bundle import ModelInput
from wire.contracts.models import MOST_ROWS, ModelRequest, ModelResponse
from wire.errors import legal
from wire.models import GraphModel, Inputs

group = Group("models")

SMALL_ROWS = 512
"""Answered at once; above it a call takes one of the places for large ones, and its turn."""

_decoder = msgspec.json.Decoder(ModelRequest)


@group.route(
    "POST",
    "/v1/models/{problem}/{name}",
    summary="Ask a further model of the live bundle",
    takes=ModelRequest,
    gives=ModelResponse,
    refuses=(400, 404, 408, 413, 422, 503),
)
async def ask(request: Request) -> Response:
    """Answer rows with a further model (run times, lives) of the bundle that is live, as its spec describes it.

    It is the same file that the simulator asked in training: a caller that works out fields of ``/v1/place`` from its
    answers gives the policy the same bits. ``digest`` says which bundle it came with; ask again after a flip.
    """
    running, problem, name = service.of(request), bodies.known_problem(request), request.path_params["name"]
    policy = running.live.get(problem).policy
    if policy is None:
        raise PlaceRefusedError(404, f"no policy is live for {problem}", "one whose bundle carries the model")
    model = policy.models.get(name)
    if model is None:
        carried = legal(sorted(policy.models)) if policy.models else "none: it carries none"
        fix = "leave out the fields that need it"
        raise PlaceRefusedError(404, f"the bundle that is live for {problem} has no model {name!r}", carried, fix)
    with running.lane.call() as call:
        asked = _decoded(await bodies.read(request, lane.SMALL_BYTES, lane.SMALL_BYTES, call.enlarge))
        inputs = _arrays(asked, model)
        if len(next(iter(inputs.values()))) > SMALL_ROWS:
            call.enlarge()
        async with running.lane.turn(call, 0):
            answers = await asyncio.to_thread(_answers, model, inputs)
    return bodies.answer(ModelResponse(policy.digest, answers, model.spec.unit))


def _decoded(body: bytes) -> ModelRequest:
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise PlaceRefusedError(422, f"body: {error}", "a ModelRequest (see /docs)") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PlaceRefusedError(400, f"body: {error}", "JSON in UTF-8, finite numbers") from error


def _arrays(asked: ModelRequest, model: GraphModel) -> Inputs:
    """Hold the rows to the model's ports, by their numbers first: nothing is allocated for what will be refused."""
    ports = {port.name: port for port in model.spec.inputs}
    if asked.inputs.keys() != ports.keys():
        raise PlaceRefusedError(400, f"inputs are {sorted(asked.inputs)[:8]}", f"exactly {sorted(ports)}")
    counts = {len(rows) for rows in asked.inputs.values()}
    if max(counts) > MOST_ROWS:
        raise PlaceRefusedError(413, f"{max(counts)} rows", f"at most {MOST_ROWS}", "split the call")
    if len(counts) > 1:
        raise PlaceRefusedError(400, f"inputs have {sorted(counts)} rows", "as many of each")
    return {name: _array(asked.inputs[name], port) for name, port in ports.items()}


def _array(rows: list[list[float]], port: ModelInput) -> NDArray[np.generic]:
    if len(port.axes) != 2 or port.axes[1] is None:
        raise PlaceRefusedError(400, f"input {port.name!r} has axes {port.axes}", "a table of rows", "ask it elsewhere")
    width = port.axes[1]
    wrong = next((index for index, row in enumerate(rows) if len(row) != width), None)
    if wrong is not None:
        columns = ", ".join(f"{column.name} ({column.unit})" for column in port.columns)
        found = f"row {wrong} of input {port.name!r} has {len(rows[wrong])} numbers"
        raise PlaceRefusedError(400, found, f"{width}: {columns}")
    with np.errstate(all="ignore"):
        told = np.array(rows, np.float64)
        array = told.astype(port.dtype)
        wide = ~np.isfinite(array) if port.dtype == "float32" else array.astype(np.float64) != told
    if wide.any():
        where, which = np.argwhere(wide)[0]
        found = f"row {where} of input {port.name!r} has {port.columns[which].name} = {told[where, which]}"
        raise PlaceRefusedError(400, found, f"a finite number that {port.dtype} can hold")
    return array


def _answers(model: GraphModel, inputs: Inputs) -> list[list[float]]:
    """Run the graph; what is not finite has no form in JSON."""
    output = model(inputs)
    if not np.isfinite(output).all():
        where = int(np.argwhere(~np.isfinite(output))[0, 0])
        raise PlaceRefusedError(422, f"the model has no finite answer to row {where}", "rows such as it was made for")
    answers: list[list[float]] = output.reshape(len(output), -1).tolist()
    return answers
