"""Scenarios: named settings of an environment, from the YAML files of its problem or from the user's own.

A scenario's type is a ``msgspec`` struct below :class:`Scenario`, the ``scenario`` of its problem. Unknown keys, wrong
types and values out of range are errors that name file, key and what is legal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import yaml

from sched_env import problems
from wire.contracts.feature_spec import ProblemName
from wire.errors import ConfigError, legal

SYNTHETIC = "synthetic"
"""The trace that is generated, so that nothing needs a download."""
UPSTREAM_NAMES = {"recovering-L": "vm/recovering-l", "expand": "vm/expanding"}
"""Names that VMAgent's scripts use -> ours."""
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Size = Annotated[float, msgspec.Meta(gt=0)]
Amount = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Kind = TypeVar("Kind", bound="Scenario")
Range = Annotated[list[float], msgspec.Meta(min_length=2, max_length=2)]
"""[low, high]"""


SPLITS = {"train": (0.0, 0.6), "validation": (0.6, 0.75), "test": (0.75, 1.0)}
"""Where each part of a trace begins and ends, in shares of its rows; as the pipeline cuts time (section ``splits``)."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every scenario has."""

    aliases: ClassVar[Mapping[str, str]] = {}
    """Other spellings of keys, as users of the originals know them."""
    rewards: ClassVar[tuple[str, ...]] = ("default",)
    """The built-in rewards."""

    problem: ProblemName
    name: str = ""
    """``vm/fading``, or the stem of the user's file; filled in by the loader."""
    trace: str = SYNTHETIC
    """A file, or ``synthetic``."""
    horizon: Count = 0
    """Decisions after which an episode is cut (truncated); 0: no limit."""
    start_min: Count = 0
    """First trace row an episode may start at, when no start is asked for."""
    start_max: Count = 0
    """Row before which such an episode starts; 0: the end of the trace."""
    split: Literal["all", "train", "validation", "test"] = "all"
    """Which part of the trace episodes lie in, in that order, from start to end: no row is in two of them."""
    reward: str = "default"
    """A built-in reward, or ``module:function`` of the user's (``sched_env.rewards``)."""
    reward_range: Range | None = None
    """What a reward of the user's lies between, which every step is held to. Without it nobody knows what an infeasible
    action must cost, and ``invalid_action="terminate"`` is refused."""

    def __post_init__(self) -> None:
        """Refuse a reward that nobody knows and a range that is the wrong way round."""
        if str(self.reward) not in self.rewards and ":" not in str(self.reward):
            raise ConfigError(
                f"{self.name}: key 'reward' is {self.reward!r}: unknown", legal([*self.rewards, "module:function"])
            )
        if self.reward_range is not None and self.reward_range[0] > self.reward_range[1]:
            raise ConfigError(f"{self.name}: key 'reward_range' is {self.reward_range}", "[low, high]")

    @property
    def price_assumed(self) -> bool:
        """Whether costs are at 1 USD a node hour because no price is known; reports say so."""
        return False


def within_split(scenario: Kind, rows: int, episode_rows: int = 1) -> tuple[Kind, int]:
    """Return the scenario with starts in its part of a trace, and the row at which its episodes end at the latest.

    ``start_min`` and ``start_max`` hold where they lie in the part.

    Args:
        scenario: The settings; ``split`` is ``all`` in the result, so that no part of a part is taken.
        rows: What can be a start: rows, windows, workflows.
        episode_rows: How many of them an episode has, where that is known.
    """
    if scenario.split == "all":
        return scenario, rows
    begin, end = (int(share * rows) for share in SPLITS[scenario.split])
    if end - begin < episode_rows:
        raise ConfigError(
            f"{scenario.name}: part {scenario.split} of the trace has {end - begin} of its {rows} rows",
            f"at least {episode_rows}, for one episode",
            "take a longer trace or shorter episodes",
        )
    first = scenario.start_min if begin <= scenario.start_min < end else begin
    last = scenario.start_max if begin < scenario.start_max < end else 0
    return msgspec.structs.replace(scenario, split="all", start_min=first, start_max=last), end


def names() -> list[str]:
    """List the built-in scenarios as ``problem/name``."""
    return sorted(f"{problem}/{path.stem}" for problem in problems.names() for path in _folder(problem).glob("*.yaml"))


def _folder(problem: str) -> Path:
    return problems.folder(problem) / "scenarios"


def load(scenario: str | Scenario, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """Load a built-in scenario (``vm/fading``, or ``fading`` where that is unique) or a YAML file, with overrides.

    Args:
        scenario: Name, path of a YAML file, or a scenario already loaded.
        overrides: Keys to replace; aliases are understood, unknown keys are errors.
    """
    if isinstance(scenario, Scenario):
        if not overrides:
            return scenario
        source, data = scenario.name, msgspec.to_builtins(scenario)
    else:
        source, data = _read(scenario)
    data = {**_only_problem(data), **data}
    if not isinstance(data.get("problem"), str) or data["problem"] not in problems.names():
        raise ConfigError(f"{source}: key 'problem' is {data.get('problem')!r}", legal(problems.names()))
    kind = problems.get(data["problem"]).scenario
    data = {**_canonical(source, kind, data), **_canonical(f"{source} (override)", kind, overrides or {})}
    return _convert(source, kind, data)


def _read(name: str) -> tuple[str, dict[str, Any]]:
    plain = UPSTREAM_NAMES.get(name.removeprefix("vm/"), name)
    builtin = [known for known in names() if plain in (known, known.partition("/")[2])]
    problem, _, stem = builtin[0].partition("/") if len(builtin) == 1 else ("", "", "")
    path = _folder(problem) / f"{stem}.yaml" if problem else Path(name)
    if path.suffix not in {".yaml", ".yml"} or not path.is_file():
        raise ConfigError(f"scenario {name!r} does not exist", f"{legal(names())}, or a YAML file")
    try:
        data = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds {type(data).__name__}", "a mapping of scenario keys")
    if problem:
        return builtin[0], {"problem": problem, "name": builtin[0], **data}
    return str(path), {"name": path.stem, **data}


def _only_problem(data: Mapping[str, Any]) -> dict[str, str]:
    """Name the problem of a file that does not, such as VMAgent's, if only one problem knows all its keys."""
    if "problem" in data:
        return {}
    kinds = {name: problems.get(name).scenario for name in problems.names()}
    known = [name for name, kind in kinds.items() if set(data) <= {*kind.__struct_fields__, *kind.aliases}]
    return {"problem": known[0]} if len(known) == 1 else {}


def _canonical(source: str, kind: type[Scenario], data: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in data.items():
        known = kind.aliases.get(key, key)
        if known not in kind.__struct_fields__:
            aliases = f"; aliases {', '.join(kind.aliases)}" if kind.aliases else ""
            raise ConfigError(f"{source}: key {key!r} is unknown", legal(kind.__struct_fields__) + aliases)
        if known in result:
            raise ConfigError(f"{source}: key {known!r} is given twice ({key!r} is an alias of it)")
        result[known] = value
    return result


def _convert(source: str, kind: type[Scenario], data: dict[str, Any]) -> Scenario:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        match = re.search(r"^(.*?)(?: - at `\$\.(\w+).*`)?$", str(error), re.DOTALL)
        reason, key = match.groups() if match else (str(error), None)
        found = f"{source}: key {key!r} is {data.get(key)!r}: {reason}" if key else f"{source}: {reason}"
        raise ConfigError(found, _legal_values(kind, key)) from error


def _legal_values(kind: type[Scenario], key: str | None) -> str:
    """Spell out the values of a ``Literal`` key; msgspec's own message gives type and range of the others."""
    hint = get_type_hints(kind).get(key or "")
    choices = [hint, *get_args(hint)]
    return next((legal(get_args(choice)) for choice in choices if get_origin(choice) is Literal), "")
