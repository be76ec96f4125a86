"""The sample's cluster of VMs: flavours, bursts and lifetimes as in Huawei's public trace, on hosts of two halves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.sources.sample_cluster import GIB, NodeType
from pipeline.sources.sample_machines import DAY_S, F8, Life, MachineCluster, Use
from sched_env.vm import synthetic

HOSTS = 8
"""They fill up in three to four days: most VMs go within the hour, but a few stay for weeks."""
HOST_TYPE = NodeType("host-80c-180g", 80, 180, 1_250, 20_000, 0, 3.40)
"""Two halves of 40 cores and 90 GiB, as in the vm scenarios; the price is what the cores cost as m5 instances."""
PUBLIC_PER_DAY = 86_400 / synthetic.MEAN_GAP_S


class VmCluster(MachineCluster):
    """VMs come and go; each goes to the host with the most free cores, and is refused when none has room."""

    def __init__(self, name: str, vms_per_day: int, **given: Any) -> None:
        super().__init__(name, **given)
        self._per_day = vms_per_day

    @property
    def kinds(self) -> Sequence[NodeType]:
        """The hosts."""
        return [HOST_TYPE] * HOSTS

    @cached_property
    def _life(self) -> Life:
        days = len(self._days)
        seed = int(self.rng("vms").integers(2**31))
        # Half as many again as are needed on average: those after the last day are cut off.
        trace = synthetic.generate(round(1.5 * self._per_day * days), seed, self._per_day / PUBLIC_PER_DAY)
        end_s = days * DAY_S
        # The generated VMs are numbered from 0 in order of creation, and each is deleted once.
        created, gone = (trace.time[trace.kind == kind][np.argsort(trace.vmid[trace.kind == kind])] for kind in (0, 1))
        free = np.tile([float(HOST_TYPE.cpu), float(HOST_TYPE.mem_gib)], (HOSTS, 1))
        node = np.full(len(created), -1)
        for row in np.flatnonzero(trace.time < end_s).tolist():
            vm, need = trace.vmid[row], np.array([trace.cpu[row], trace.mem[row]])
            if trace.kind[row] == 1:
                if node[vm] >= 0:
                    free[node[vm]] += need
                continue
            room = np.where((free >= need).all(axis=1), free[:, 0], -1.0)
            if room.max() >= 0:
                node[vm] = int(np.argmax(room))
                free[node[vm]] -= need
        made = np.flatnonzero(created < end_s)
        first = np.argsort(np.where(trace.kind == 0, trace.vmid, len(trace)), kind="stable")[made]
        size = {"cpu_cores": trace.cpu[first], "mem_bytes": trace.mem[first] * GIB}
        names = [f"vm-{number:05d}" for number in range(len(made))]
        return Life("vm", names, created[made], gone[made], node[made], size)

    def used(self) -> tuple[F8, F8]:
        """A VM keeps a part of its cores busy, and most of its memory."""
        life, rng = self._life, self.rng("use")
        placed = life.node >= 0
        busy, held = rng.uniform(0.05, 0.6, len(placed)), rng.uniform(0.5, 0.95, len(placed))

        def summed(amount: F8) -> F8:
            return self.summed(
                Use(life.node[placed], life.created_s[placed], life.deleted_s[placed], amount[placed]), HOSTS
            )

        return 0.4 + summed(life.columns["cpu_cores"] * busy), 4 * GIB + summed(life.columns["mem_bytes"] * held)

    def other_tables(self, day: int) -> Iterator[tuple[str, pa.Table]]:
        """Creations and deletions."""
        yield "events", self.events(self._life, day)
