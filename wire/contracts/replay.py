"""Replay files: every decision of a rollout as one Parquet row; never pickle."""

from __future__ import annotations

SCHEMA_VERSION = 3
READABLE = (1, 2, 3)
"""Version 1 has no departures, version 2 those of vm alone (``departed…``); neither has names, use or events. Readers
give their rows the columns of today, empty where the file does not say."""
TOP_SCORES = 16
EVENT_KINDS = ("there", "start", "end", "move")
"""``there``: it was placed when the episode began (in the first row). ``start``: it came to its place without a
decision. ``end``: it left. ``move``: it went from one place to another."""

COLUMNS: dict[str, str] = {
    "episode": "int32",
    "step": "int32",
    "time_s": "float64",
    "request": "list<float32>",  # the request vector of the FeatureSpec
    "action": "int32",
    "feasible": "int32",
    "reward": "float32",
    "touched": "list<int32>",  # candidates whose state changed since the row before (placement and departures)
    "touched_features": "list<float32>",  # their new feature rows, flattened: len(touched) x F
    "top_candidates": "list<int32>",  # up to TOP_SCORES feasible candidates, best first
    "top_scores": "list<float32>",
    "who": "string",  # what is placed: a VM, pod, instance, task or job; empty: the decision was to wait
    "place": "int32",  # where it goes: an index of the layout's names; -1: nowhere
    "start_s": "float64",  # when it begins there; NaN: it does not
    "end_s": "float64",  # when it is expected to end, as known once it is placed; NaN: nobody knows
    "places": "int32",  # how many places there are now
    "used_of": "list<int32>",  # places whose use changed since the row before (in an episode's first: since `use`)
    "used": "list<float32>",  # their shares in use, flattened: len(used_of) x resources
    "top_places": "list<int32>",  # of the top candidates
    "top_who": "list<string>",  # and what each would place; empty: all of them `who`
    "event": "list<string>",  # what happened after the decision and before the next: one of EVENT_KINDS
    "event_who": "list<string>",
    "event_from": "list<int32>",  # place; -1: none
    "event_to": "list<int32>",
    "event_s": "list<float64>",
}
"""Column -> Arrow type. File metadata: ``loadmaster.replay`` (version), ``scenario``, ``policy``, ``seed``,
``feature_spec`` (JSON), ``initial`` (the first episode's candidates as base64 float32, with its shape), ``layout``
(JSON: kind, names and groups of places), ``use`` (JSON: the resources, and the first episode's shares as ``initial``)
and ``episodes`` (JSON: start, metrics and, of a workflow, the graph of each)."""
