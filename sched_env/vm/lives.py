"""What is expected of the lives of VMs: how the ``lifetime`` model is asked, and what is left of a life as it goes on.

The simulator asks the model once for each VM, as it is created, and so does who calls the live service
(``POST /v1/models/vm/lifetime``): the same rows, the same file, the same bits. Both then go on by :func:`ends_s`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.contracts.bundle import Column, ModelInput, ModelSpec

Floats = NDArray[np.float64]

ROWS, SECONDS = "rows", "seconds"
"""Names of the graph's input and output."""
COLUMNS = (Column("cpu", "cores"), Column("mem", "GiB"), Column("hour", "hours"), Column("age", "seconds"))
"""One row a VM; ``hour`` is that of the day (UTC) at which it was created, 0 up to 24."""
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Of what is left, column by column of the answer."""
MEDIAN = QUANTILES.index(0.5)
SPEC = ModelSpec(
    inputs=(ModelInput(ROWS, "float32", (None, len(COLUMNS)), COLUMNS),),
    output=SECONDS,
    unit="seconds",
    version=1,
    output_axes=(None, len(QUANTILES)),
)
SECONDS_A_DAY = 86_400.0


def asked(cpu: Floats, mem: Floats, created_s: Floats) -> NDArray[np.float32]:
    """Return the rows of VMs at their creation; ``created_s`` is in seconds from some midnight (UTC)."""
    hour = created_s % SECONDS_A_DAY / 3600.0
    return np.stack([cpu, mem, hour, np.zeros(len(hour))], axis=1).astype(np.float32)


def expected(answer: NDArray[np.float32]) -> Floats:
    """Return what placing goes by: the quantiles of lives from the median on."""
    return answer[:, MEDIAN:].astype(np.float64)


def outlasting(age_s: Any, lives_s: Any) -> Any:
    """Return the first of rising lives above an age; infinite when it has outlived all of them."""
    for life_s in lives_s:
        if life_s > age_s:
            return life_s
    return np.inf


def left_s(age_s: Any, life_s: Any) -> Any:
    """Return what is left of a life at an age; who has outlived all that was expected lives as long again."""
    return age_s if life_s == np.inf else life_s - age_s


def ends_s(ages_s: Floats, lives_s: Floats) -> float:
    """Return the seconds until the last VM of a server is expected to be gone; 0: it has none, or nothing is known.

    Args:
        ages_s: [V]: how long its VMs have lived.
        lives_s: [V, quantiles]: what was expected of each at its creation (:func:`expected`); zeros: nothing.
    """
    known = (vm for vm in zip(ages_s.tolist(), lives_s, strict=True) if vm[1][0] > 0.0)
    return max((float(left_s(age, outlasting(age, lives))) for age, lives in known), default=0.0)
