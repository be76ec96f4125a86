"""The dynamics of ``functions``, compiled: placement, departures, accounts and observations of all environments.

An instance lives for its ``duration_s`` whatever its neighbours do: it serves an open stream of calls, so contention
makes the calls slower, not the instance longer. Each time the set of instances on a node changes, the calls since the
change before are settled at the slowdown that held between the two, for every instance of that node. So a crowded
node costs its old instances too, and an event costs no more than the instances of the node it touches.

The accounts of an episode are closed when its last instance has left: every policy answers for the same calls. What
an episode finds on the nodes at its start counts, calls and bill, up to its last arrival.
"""

from __future__ import annotations

from math import log
from typing import Any

from sched_env.functions import contention, features
from sched_env.functions.state import (
    ARRIVAL,
    BILLED_UNTIL,
    CALLS,
    CHECKPOINT_ROWS,
    COLD,
    COLD_STARTS,
    CORE_SECONDS,
    COST,
    CPU,
    CPU_INVERSE,
    CPU_RATE,
    CPU_SHARE,
    CPU_USE,
    DISK,
    DISK_INVERSE,
    DISK_RATE,
    DISK_SHARE,
    DOMAIN,
    DURATION,
    FOUND,
    FREE,
    FUNCTION,
    HEAD,
    HELD,
    HISTOGRAM_BINS,
    HISTOGRAM_WIDTH,
    HOME,
    IDLE,
    IDLE_UNTIL,
    IDLE_USE,
    INSTANCES,
    INSTANT,
    LAST_REJECTED,
    LATE,
    LATE_SHARE,
    LATENCY_COST,
    LEAVING,
    LIFETIME,
    MEM,
    MEM_INVERSE,
    MEM_USE,
    NET,
    NET_INVERSE,
    NET_RATE,
    NET_SHARE,
    NEXT,
    NODE,
    OWN_DOMAIN,
    PACED,
    PLACED,
    POWER,
    PREVIOUS,
    PRICE,
    R1,
    R2,
    RART,
    RATE,
    RATIO,
    REJECTED,
    REQUESTS,
    RESPONSE,
    RETURN,
    ROW,
    RUNNING_REQUESTS,
    SETTLED,
    SLO_COST,
    SLO_RATIO,
    START,
    TASK,
    USED_MEM,
    WINDOW,
    WORK,
    Cluster,
    Rules,
    State,
)
from sched_env.heap import ITEM, TIME, drop_first, push
from sched_env.jit import inline, lean_kernel, part
from sched_env.stepping import RUNNING, dynamics
from sched_env.tables import Floats
from sched_env.tails import TAIL_HIGH, TAIL_LOW, TAIL_POINTS
from sched_env.vector import END_OF_TRACE, HORIZON, Buffers

factors = part(contention.factors)
cold_calls = part(contention.cold_calls)
wait_for_cpu = part(contention.waiting)
utilization_after = part(features.utilization_after)
cost_change = part(features.cost_change)
fits = part(features.fits)
FIT_TOLERANCE = features.FIT_TOLERANCE

TUTORIAL_BASE_S, TUTORIAL_SLOPE_S = 0.1, 4.9
EXCEEDED = 1.0 + FIT_TOLERANCE
"""Share of a resource above which more is asked for than there is."""
SECONDS_PER_HOUR = 3600.0
FIRST_TAIL, TAILS_PER_LOG = log(TAIL_LOW), (TAIL_POINTS - 1) / log(TAIL_HIGH / TAIL_LOW)
CERTAIN = 1.0 + 1e-12
"""A convex combination can pass its largest part by rounding only."""
NEVER = 1e300
MIN_RANGE = 1e-6
"""Calibration bounds closer than this say nothing: the normalised value is 0."""


@part
def account(state: State, b: int, calls: float, ratio: float) -> None:
    """Enter calls answered at a relative response time."""
    state.totals[b, RATIO] += calls * ratio
    index = min(int((ratio - 1.0) * (1.0 / HISTOGRAM_WIDTH)), HISTOGRAM_BINS - 1)
    state.histogram[b, max(index, 0)] += calls


@part
def slowed(
    cluster: Cluster, rules: Rules, state: State, b: int, n: int, row: int, net_factor: float, disk_factor: float
) -> tuple[float, float, float]:
    """Return the slowdowns of this cluster by what is used, as calibration found them; a row below 0 adds nothing.

    The factors of network and disk come with the slowdown by requested memory, which is none here.
    """
    used, mem = state.books[b, n, CPU_USE], state.books[b, n, USED_MEM]
    if row >= 0:
        rate = cluster.tasks[row, REQUESTS] / cluster.tasks[row, DURATION]
        used += cluster.tasks[row, IDLE_USE] + cluster.tasks[row, WORK] * rate
        mem += cluster.tasks[row, MEM_USE]
    share = used * cluster.nodes[n, CPU_INVERSE]
    queue = wait_for_cpu(share, cluster.nodes[n, CPU] - used, cluster.nodes[n, POWER])
    _, memory, _ = factors(0.0, 1.0, mem * cluster.nodes[n, MEM_INVERSE], 0.0, 0.0)
    return (
        (1.0 + rules.cpu_gain * queue + rules.busy_gain * share) * memory,
        (1.0 + rules.net_gain * (net_factor - 1.0)) * memory,
        (1.0 + rules.disk_gain * (disk_factor - 1.0)) * memory,
    )


@part
def node_factors(cluster: Cluster, rules: Rules, state: State, b: int, n: int, row: int) -> tuple[float, float, float]:
    """Return how much slower cpu, network and disk of a node are, as it is or (a row from 0) with one more instance."""
    cpu, mem, net, disk = (
        state.nodes[b, n, CPU],
        state.nodes[b, n, MEM],
        state.nodes[b, n, NET],
        state.nodes[b, n, DISK],
    )
    if row >= 0:
        cpu += cluster.tasks[row, CPU]
        mem += cluster.tasks[row, MEM]
        net += cluster.tasks[row, NET]
        disk += cluster.tasks[row, DISK]
    mem_share = 0.0 if rules.by_use else mem * cluster.nodes[n, MEM_INVERSE]
    cpu_factor, net_factor, disk_factor = factors(
        cpu * cluster.nodes[n, CPU_INVERSE],
        cluster.nodes[n, CPU] - cpu,
        mem_share,
        net * cluster.nodes[n, NET_INVERSE],
        disk * cluster.nodes[n, DISK_INVERSE],
    )
    if not rules.calibrated:
        return cpu_factor, net_factor, disk_factor
    if rules.by_use:
        return slowed(cluster, rules, state, b, n, row, net_factor, disk_factor)
    return (
        1.0 + rules.cpu_gain * (cpu_factor - 1.0),
        1.0 + rules.net_gain * (net_factor - 1.0),
        1.0 + rules.disk_gain * (disk_factor - 1.0),
    )


@part
def ratio_of(cluster: Cluster, rules: Rules, row: int, cpu_factor: float, net_factor: float, disk_factor: float) -> Any:
    """Return the relative response time of an instance's calls at these slowdowns."""
    cpu, net, disk = cluster.tasks[row, CPU_SHARE], cluster.tasks[row, NET_SHARE], cluster.tasks[row, DISK_SHARE]
    ratio = cpu * cpu_factor + net * net_factor + disk * disk_factor
    # What is known to be neither computing nor reading nor sending is waited for elsewhere.
    return ratio + (1.0 - cpu - net - disk) if rules.by_use else ratio


@part
def late_part(cluster: Cluster, row: int, ratio: float) -> float:
    """Return the share of calls that miss the SLO, when their mean relative response time is ``ratio``.

    Calls of one kind take so many times their mean as those that were measured; where nobody says, they are alike.
    """
    slo_ratio = cluster.tasks[row, SLO_RATIO]
    if cluster.tails.shape[0] == 0:
        return 1.0 if ratio > slo_ratio else 0.0
    tail = cluster.tails[int(cluster.tasks[row, FUNCTION])]
    place = (log(slo_ratio / ratio) - FIRST_TAIL) * TAILS_PER_LOG
    below = min(max(int(place), 0), TAIL_POINTS - 2)
    above = min(max(place - below, 0.0), 1.0)
    return float(tail[below] * (1.0 - above) + tail[below + 1] * above)


@inline
def settle(cluster: Cluster, rules: Rules, state: State, b: int, n: int, now: float) -> None:
    """Account for the calls of a node's instances up to now, at the slowdown that held since the last change.

    Where no instance can be late the node's sums are enough, and its calls are entered at their mean; where some may
    be, instance by instance.
    """
    seconds = now - state.books[b, n, SETTLED]
    state.books[b, n, SETTLED] = now
    if seconds <= 0.0:
        return
    state.totals[b, CORE_SECONDS] += seconds * min(state.books[b, n, CPU_USE], cluster.nodes[n, CPU])
    if state.books[b, n, HEAD] < 0.0:
        return
    cpu_factor, net_factor, disk_factor = node_factors(cluster, rules, state, b, n, -1)
    if max(cpu_factor, net_factor, disk_factor) * CERTAIN <= rules.slo_floor:
        rate = state.books[b, n, RATE]
        if rate > 0.0:
            weighted = (
                state.books[b, n, CPU_RATE] * cpu_factor
                + state.books[b, n, NET_RATE] * net_factor
                + state.books[b, n, DISK_RATE] * disk_factor
            )
            if rules.by_use:
                weighted += (
                    rate - state.books[b, n, CPU_RATE] - state.books[b, n, NET_RATE] - state.books[b, n, DISK_RATE]
                )
            account(state, b, rate * seconds, weighted / rate)
        return
    slot = int(state.books[b, n, HEAD])
    while slot >= 0:
        row = state.links[b, slot, TASK]
        ratio = ratio_of(cluster, rules, row, cpu_factor, net_factor, disk_factor)
        calls = state.rates[b, slot, 0] * pace_of(cluster, state, b, row) * seconds
        account(state, b, calls, ratio)
        state.totals[b, LATE] += calls * late_part(cluster, row, ratio)
        slot = state.links[b, slot, NEXT]


@part
def pace_of(cluster: Cluster, state: State, b: int, row: int) -> float:
    """Return how fast calls come to an instance now."""
    if cluster.pace.shape[0] == 0:
        return 1.0
    return float(cluster.pace[state.cursor[b, WINDOW], int(cluster.tasks[row, FUNCTION])])


@part
def paced_upto(cluster: Cluster, row: int, time_s: float) -> float:
    """Return the seconds, at the pace of an instance's function, up to a time."""
    if cluster.pace.shape[0] == 0:
        return time_s
    f = int(cluster.tasks[row, FUNCTION])
    window = min(max(int(time_s * cluster.up_rate), 0), cluster.pace.shape[0] - 1)
    return float(cluster.paced[window, f] + cluster.pace[window, f] * (time_s - window / cluster.up_rate))


@part
def enter(cluster: Cluster, state: State, b: int, n: int, slot: int, sign: float) -> None:
    """Add an instance's calls and use to the sums of its node, or take them away."""
    row = state.links[b, slot, TASK]
    pace = sign * pace_of(cluster, state, b, row)
    rate = state.rates[b, slot, 0] * pace
    state.books[b, n, RATE] += rate
    state.books[b, n, CPU_RATE] += rate * cluster.tasks[row, CPU_SHARE]
    state.books[b, n, NET_RATE] += rate * cluster.tasks[row, NET_SHARE]
    state.books[b, n, DISK_RATE] += rate * cluster.tasks[row, DISK_SHARE]
    work = cluster.tasks[row, WORK] * state.rates[b, slot, 1] * pace
    state.books[b, n, CPU_USE] += sign * cluster.tasks[row, IDLE_USE] + work
    state.books[b, n, USED_MEM] += sign * cluster.tasks[row, MEM_USE]


@part
def clear_sums(rules: Rules, state: State, b: int, n: int) -> None:
    """Leave a node with what the system itself uses."""
    for column in range(RATE, USED_MEM + 1):
        state.books[b, n, column] = 0.0
    state.books[b, n, CPU_USE] = rules.system_cores


@part
def turn_window(cluster: Cluster, rules: Rules, state: State, b: int) -> None:
    """Go on to the next window's pace."""
    border = (state.cursor[b, WINDOW] + 1) / cluster.up_rate
    for n in range(cluster.nodes.shape[0]):
        settle(cluster, rules, state, b, n, border)
        clear_sums(rules, state, b, n)
    state.cursor[b, WINDOW] += 1
    for n in range(cluster.nodes.shape[0]):
        slot = int(state.books[b, n, HEAD])
        while slot >= 0:
            enter(cluster, state, b, n, slot, 1.0)
            slot = state.links[b, slot, NEXT]


@part
def leave(cluster: Cluster, rules: Rules, state: State, b: int) -> None:
    """Let the instance with the earliest departure go; its container stays warm for a while."""
    now, slot = state.leaving[b, 0, TIME], int(state.leaving[b, 0, ITEM])
    drop_first(state.leaving[b], state.cursor[b, LEAVING])
    state.cursor[b, LEAVING] -= 1
    n = state.links[b, slot, NODE]
    row = state.links[b, slot, TASK]
    settle(cluster, rules, state, b, n, now)
    before, after = state.links[b, slot, PREVIOUS], state.links[b, slot, NEXT]
    if before >= 0:
        state.links[b, before, NEXT] = after
    else:
        state.books[b, n, HEAD] = after
    if after >= 0:
        state.links[b, after, PREVIOUS] = before
    state.links[b, slot, NEXT] = state.cursor[b, FREE]
    state.cursor[b, FREE] = slot
    state.nodes[b, n, INSTANCES] -= 1.0
    if state.nodes[b, n, INSTANCES] > 0.0:
        for resource in range(4):
            state.nodes[b, n, resource] -= cluster.tasks[row, resource]
        enter(cluster, state, b, n, slot, -1.0)
    else:  # an empty node is exactly empty: rounding must not pile up over a long episode
        for resource in range(4):
            state.nodes[b, n, resource] = 0.0
        clear_sums(rules, state, b, n)
    if row < state.cursor[b, START]:
        state.cursor[b, FOUND] -= 1
        since = paced_upto(cluster, row, cluster.tasks[state.cursor[b, START], ARRIVAL])
        state.totals[b, CALLS] += state.rates[b, slot, 0] * (paced_upto(cluster, row, now) - since)
    f = int(cluster.tasks[row, FUNCTION])
    state.functions[b, f, RUNNING_REQUESTS] -= cluster.tasks[row, REQUESTS]
    if cluster.homes[row, HELD]:
        return
    state.warm[b, f, n, IDLE] = (state.warm[b, f, n, IDLE] if state.warm[b, f, n, IDLE_UNTIL] > now else 0.0) + 1.0
    state.warm[b, f, n, IDLE_UNTIL] = now + rules.keep_alive_s


@inline
def elapse(cluster: Cluster, rules: Rules, state: State, b: int, now: float) -> None:
    """Let everything happen up to a time: instances leave, and windows turn."""
    while True:
        window = state.cursor[b, WINDOW] + 1
        border = window / cluster.up_rate if window < cluster.pace.shape[0] else NEVER
        leaving = state.leaving[b, 0, TIME] if state.cursor[b, LEAVING] > 0 else NEVER
        if min(border, leaving) > now or min(border, leaving) == NEVER:
            return
        if leaving <= border:
            leave(cluster, rules, state, b)
        elif now == NEVER and leaving == NEVER:
            return
        else:
            turn_window(cluster, rules, state, b)


@part
def normalised(value: float, low: float, high: float) -> float:
    """Scale a value between its calibration bounds, clipped to [0, 1]."""
    if high - low < MIN_RANGE:
        return 0.0
    return min(max((value - low) / (high - low), 0.0), 1.0)


@inline
def outcome(cluster: Cluster, rules: Rules, state: State, b: int, n: int) -> tuple[float, float, float, bool]:
    """Return R1, the contended ratio, R2 and whether an idle container waits, if the instance were put on node n."""
    row = state.cursor[b, ROW]
    now = cluster.tasks[row, ARRIVAL]
    cpu_after, mem_after, _, _ = utilization_after(
        cluster.nodes[n, CPU_INVERSE],
        cluster.nodes[n, MEM_INVERSE],
        cluster.nodes[n, NET_INVERSE],
        cluster.nodes[n, DISK_INVERSE],
        state.nodes[b, n, CPU],
        state.nodes[b, n, MEM],
        state.nodes[b, n, NET],
        state.nodes[b, n, DISK],
        cluster.tasks[row, CPU],
        cluster.tasks[row, MEM],
        cluster.tasks[row, NET],
        cluster.tasks[row, DISK],
    )
    cpu_factor, net_factor, disk_factor = node_factors(cluster, rules, state, b, n, row)
    contended = ratio_of(cluster, rules, row, cpu_factor, net_factor, disk_factor)
    f = int(cluster.tasks[row, FUNCTION])
    warm = state.warm[b, f, n, IDLE_UNTIL] > now and state.warm[b, f, n, IDLE] > 0.0
    if rules.tutorial_r1:
        r1 = TUTORIAL_BASE_S + TUTORIAL_SLOPE_S * (0.5 * (cpu_after + mem_after))
    else:
        r1 = contended + (0.0 if warm else cluster.tasks[row, COLD])
    left = max(state.nodes[b, n, BILLED_UNTIL] - now, 0.0)
    if rules.r2 == LIFETIME:
        span = cluster.tasks[row, DURATION] + rules.cooldown_s
        r2 = cost_change(cluster.nodes[n, PRICE], left, span, 1.0 / span)
    elif rules.r2 == INSTANT:
        r2 = cluster.nodes[n, PRICE] if left <= 0.0 else 0.0
    else:
        r2 = cluster.nodes[n, PRICE]
    return r1, contended, r2, warm


@part
def late_calls(cluster: Cluster, rules: Rules, row: int, contended: float) -> Any:
    """Return how many of the calls that wait for a cold container are answered after the SLO."""
    slack = (cluster.tasks[row, SLO_RATIO] - contended) * cluster.tasks[row, RESPONSE]
    if rules.cold_start_s <= slack:
        return 0.0
    seconds = min(rules.cold_start_s - slack, rules.cold_start_s, cluster.tasks[row, DURATION])
    requests = cluster.tasks[row, REQUESTS]
    return min(requests, 1.0) + max(requests - 1.0, 0.0) / cluster.tasks[row, DURATION] * seconds


@part
def judge(
    cluster: Cluster, rules: Rules, row: int, r1: float, r2: float, contended: float, warm: bool
) -> tuple[float, float]:
    """Return (share of the instance's calls that would miss the SLO, reward) of a placement."""
    late = 0.0 if warm else late_calls(cluster, rules, row, contended)
    part = late_part(cluster, row, contended)
    late = max(late, part * cluster.tasks[row, REQUESTS])
    share = late / max(cluster.tasks[row, REQUESTS], 1.0)
    if rules.reward == LATENCY_COST:
        first = normalised(r1, rules.r1_low, rules.r1_high)
    elif rules.reward == SLO_COST:
        first = share
    else:
        return share, 0.0  # the user's function is called in Python, outside
    return share, -(rules.beta * first + (1.0 - rules.beta) * normalised(r2, rules.r2_low, rules.r2_high))


@part
def join(cluster: Cluster, state: State, b: int, row: int, n: int, rate: float) -> None:
    """Enter an instance that answers so many calls a second, at pace 1, in a node's books, up to its departure."""
    slot = state.cursor[b, FREE]
    state.cursor[b, FREE] = state.links[b, slot, NEXT]
    head = int(state.books[b, n, HEAD])
    (
        state.links[b, slot, NEXT],
        state.links[b, slot, PREVIOUS],
        state.links[b, slot, TASK],
        state.links[b, slot, NODE],
    ) = head, -1, row, n
    if head >= 0:
        state.links[b, head, PREVIOUS] = slot
    state.books[b, n, HEAD] = slot
    state.rates[b, slot, 0] = state.rates[b, slot, 1] = rate
    enter(cluster, state, b, n, slot, 1.0)
    for resource in range(4):
        state.nodes[b, n, resource] += cluster.tasks[row, resource]
    state.nodes[b, n, INSTANCES] += 1.0
    push(state.leaving[b], state.cursor[b, LEAVING], cluster.tasks[row, ARRIVAL] + cluster.tasks[row, DURATION], slot)
    state.cursor[b, LEAVING] += 1
    state.functions[b, int(cluster.tasks[row, FUNCTION]), RUNNING_REQUESTS] += cluster.tasks[row, REQUESTS]


@part
def bill(cluster: Cluster, state: State, b: int, n: int, now: float, until: float, most: float) -> None:
    """Bill a node for being needed until then; what lies after ``most`` is not this episode's to pay."""
    billed = max(state.nodes[b, n, BILLED_UNTIL], now)
    if until > billed:
        paid = max(min(until, most) - billed, 0.0)
        state.totals[b, COST] += cluster.nodes[n, PRICE] * (paid * (1.0 / SECONDS_PER_HOUR))
        state.nodes[b, n, BILLED_UNTIL] = until


@inline
def place(cluster: Cluster, rules: Rules, state: State, b: int, n: int) -> float:
    """Put the present instance on a feasible node and return the reward."""
    row = state.cursor[b, ROW]
    now, duration, requests, f = (
        cluster.tasks[row, ARRIVAL],
        cluster.tasks[row, DURATION],
        cluster.tasks[row, REQUESTS],
        int(cluster.tasks[row, FUNCTION]),
    )
    settle(cluster, rules, state, b, n, now)
    r1, contended, r2, warm = outcome(cluster, rules, state, b, n)
    share, reward = judge(cluster, rules, row, r1, r2, contended, warm)

    waiting = 0.0
    if warm:
        state.warm[b, f, n, IDLE] -= 1.0
    else:
        state.totals[b, COLD_STARTS] += 1.0
        if requests > 0.0:
            waiting = cold_calls(rules.cold_start_s, duration, requests)
            account(state, b, waiting, contended + cluster.tasks[row, COLD] * requests / waiting)
            state.totals[b, LATE] += min(late_calls(cluster, rules, row, contended), waiting)
    join(cluster, state, b, row, n, (requests - waiting) / cluster.tasks[row, PACED])
    until = now + duration + rules.cooldown_s
    bill(cluster, state, b, n, now, until, until)
    state.functions[b, f, RART] = r1
    state.totals[b, PLACED] += 1.0
    state.totals[b, CALLS] += requests
    state.last[b, R1], state.last[b, R2], state.last[b, LATE_SHARE] = r1, r2, share
    return reward


@part
def window_of(cluster: Cluster, now: float) -> Any:
    """Return the row of ``Cluster.up`` that holds at a time."""
    return min(max(int(now * cluster.up_rate), 0), cluster.up.shape[0] - 1)


@part
def exceeded(cluster: Cluster, state: State, b: int, n: int) -> bool:
    """Say whether the instances of a node ask for more of a resource than it has."""
    fixed, node = cluster.nodes[n], state.nodes[b, n]
    share = max(node[CPU] * fixed[CPU_INVERSE], node[MEM] * fixed[MEM_INVERSE])
    return bool(max(share, node[NET] * fixed[NET_INVERSE], node[DISK] * fixed[DISK_INVERSE]) > EXCEEDED)


@part
def observe(cluster: Cluster, rules: Rules, state: State, out: Buffers, b: int) -> int:
    """Write the observation of the present instance and return how many nodes can take it.

    The columns that never change (both capacities, price) are written once, when the environment is made.
    """
    task = cluster.tasks[state.cursor[b, ROW]]
    now, f = task[ARRIVAL], int(task[FUNCTION])
    cpu, mem, net, disk = task[CPU], task[MEM], task[NET], task[DISK]
    cpu_share, net_share, disk_share, cold = task[CPU_SHARE], task[NET_SHARE], task[DISK_SHARE], task[COLD]
    span = task[DURATION] + rules.cooldown_s
    inverse_span = 1.0 / span
    request = out.request[b]
    request[0], request[1], request[2], request[3] = cpu, mem, net, disk
    request[4], request[5], request[6], request[7] = task[REQUESTS], task[DURATION], task[RESPONSE], task[SLO_RATIO]
    request[8], request[9] = state.functions[b, f, RUNNING_REQUESTS], state.functions[b, f, RART]
    out.time_s[b] = now

    fixed, nodes, warms = cluster.nodes, state.nodes[b], state.warm[b, f]
    candidates, mask = out.candidates[b], out.mask[b]
    up, domain = cluster.up[window_of(cluster, now)], cluster.homes[state.cursor[b, ROW], OWN_DOMAIN]
    count = 0
    for n in range(mask.size):
        node_cpu, node_mem = nodes[n, CPU], nodes[n, MEM]
        active = 1.0 if up[n] and fixed[n, DOMAIN] == domain else 0.0
        if rules.exceeded_rests and exceeded(cluster, state, b, n):
            active = 0.0
        fit = fits(active, fixed[n, CPU], fixed[n, MEM], node_cpu, node_mem, cpu, mem)
        mask[n] = fit
        count += fit
        warm = warms[n, IDLE] if warms[n, IDLE_UNTIL] > now else 0.0
        left = max(nodes[n, BILLED_UNTIL] - now, 0.0)
        cpu_after, mem_after, net_after, disk_after = utilization_after(
            fixed[n, CPU_INVERSE],
            fixed[n, MEM_INVERSE],
            fixed[n, NET_INVERSE],
            fixed[n, DISK_INVERSE],
            node_cpu,
            node_mem,
            nodes[n, NET],
            nodes[n, DISK],
            cpu,
            mem,
            net,
            disk,
        )
        cpu_free = fixed[n, CPU] - (node_cpu + cpu)
        cpu_factor, net_factor, disk_factor = factors(cpu_after, cpu_free, mem_after, net_after, disk_after)
        contended = cpu_share * cpu_factor + net_share * net_factor + disk_share * disk_factor
        candidates[n, 3] = nodes[n, INSTANCES]
        candidates[n, 4] = 1.0 if left > 0.0 else 0.0
        candidates[n, 5] = left
        candidates[n, 6] = warm
        candidates[n, 7] = cpu_after
        candidates[n, 8] = mem_after
        candidates[n, 9] = net_after
        candidates[n, 10] = disk_after
        candidates[n, 11] = contended + (0.0 if warm > 0.0 else cold)
        candidates[n, 12] = cost_change(fixed[n, PRICE], left, span, inverse_span)
    out.feasible[b] = count
    return count


@part
def reject(cluster: Cluster, state: State, b: int) -> None:
    """Turn the present instance away: none of its calls is answered in time."""
    row = state.cursor[b, ROW]
    state.last[b, LAST_REJECTED] += 1.0
    state.totals[b, REJECTED] += 1.0
    state.totals[b, CALLS] += cluster.tasks[row, REQUESTS]
    state.totals[b, LATE] += cluster.tasks[row, REQUESTS]
    state.cursor[b, ROW] = row + 1


@part
def arrive_by_itself(cluster: Cluster, rules: Rules, state: State, b: int, row: int, now: float) -> None:
    """Let an instance go to its recorded node, whether it fits or not: what cannot be moved is held fixed."""
    n = cluster.homes[row, HOME]
    settle(cluster, rules, state, b, n, now)
    join(cluster, state, b, row, n, cluster.tasks[row, REQUESTS] / cluster.tasks[row, PACED])
    state.totals[b, CALLS] += cluster.tasks[row, REQUESTS]


@inline
def next_arrival(cluster: Cluster, rules: Rules, state: State, out: Buffers, b: int) -> int:
    """Go to the next arrival that fits somewhere, rejecting those that do not; return how the episode stands."""
    tasks, start = cluster.tasks, out.start[b]
    while True:
        row = state.cursor[b, ROW]
        exhausted = row >= tasks.shape[0]
        if exhausted:  # there is no next arrival to show: show how the last one would meet the cluster now
            row = tasks.shape[0] - 1
            state.cursor[b, ROW] = row
        now = tasks[row, ARRIVAL]
        elapse(cluster, rules, state, b, now)
        if not exhausted and cluster.homes[row, HELD]:
            if cluster.homes[row, HOME] >= 0:
                arrive_by_itself(cluster, rules, state, b, row, now)
            state.cursor[b, ROW] = row + 1
            continue
        count = observe(cluster, rules, state, out, b)
        if exhausted:
            return END_OF_TRACE
        over = rules.horizon > 0 and row - start >= rules.horizon
        if over or (rules.episode_s > 0.0 and now - tasks[start, ARRIVAL] >= rules.episode_s):
            return HORIZON
        if count > 0:
            return RUNNING
        reject(cluster, state, b)


@part
def start_range(arguments: Any) -> tuple[int, int]:
    """Return the rows between which starts are drawn."""
    cluster, rules, _ = arguments
    rows = cluster.tasks.shape[0]
    stop = min(rules.start_max, rows) if rules.start_max > 0 else max(rows - rules.horizon, 1)
    return min(rules.start_min, stop - 1), stop


@part
def episode_end(cluster: Cluster, rules: Rules, start: int) -> Any:
    """Return when the last instance of an episode arrives."""
    tasks = cluster.tasks
    last = tasks.shape[0] - 1
    if rules.horizon > 0:
        last = min(start + rules.horizon, last)
    end = tasks[last, ARRIVAL]
    return min(end, tasks[start, ARRIVAL] + rules.episode_s) if rules.episode_s > 0.0 else end


@part
def find(cluster: Cluster, rules: Rules, state: State, b: int, row: int, now: float, last: float) -> None:
    """Put an instance that came before the episode where it was recorded, if it is still there.

    Where arrivals are denser than recorded its node may be full: then the emptiest of its domain takes it, or none.
    """
    tasks, homes, n = cluster.tasks, cluster.homes, int(cluster.homes[row, HOME])
    end = tasks[row, ARRIVAL] + tasks[row, DURATION]
    if end <= now:
        return
    if not homes[row, HELD]:
        most = tasks[row, CPU] - FIT_TOLERANCE if not has_room(cluster, state, b, n, row) else -1.0
        if most >= 0.0:
            n = -1
            for other in range(cluster.nodes.shape[0]):
                free = cluster.nodes[other, CPU] - state.nodes[b, other, CPU]
                same = cluster.nodes[other, DOMAIN] == homes[row, OWN_DOMAIN]
                if same and free > most and has_room(cluster, state, b, other, row):
                    n, most = other, free
            if n < 0:
                return
        bill(cluster, state, b, n, now, end + rules.cooldown_s, last)
    state.cursor[b, FOUND] += 1
    join(cluster, state, b, row, n, tasks[row, REQUESTS] / tasks[row, PACED])


@part
def has_room(cluster: Cluster, state: State, b: int, n: int, row: int) -> bool:
    """Say whether a node has the cpu and memory left that an instance requests."""
    nodes, tasks = cluster.nodes, cluster.tasks
    return bool(
        state.nodes[b, n, CPU] + tasks[row, CPU] <= nodes[n, CPU] + FIT_TOLERANCE
        and state.nodes[b, n, MEM] + tasks[row, MEM] <= nodes[n, MEM] + FIT_TOLERANCE
    )


@part
def let_go(cluster: Cluster, rules: Rules, state: State, b: int) -> None:
    """Close the accounts of what the episode found: from its last arrival on, the calls are not its own."""
    now, began = cluster.tasks[state.cursor[b, ROW], ARRIVAL], cluster.tasks[state.cursor[b, START], ARRIVAL]
    for n in range(cluster.nodes.shape[0]):
        settle(cluster, rules, state, b, n, now)
        slot = int(state.books[b, n, HEAD])
        while slot >= 0:
            row = state.links[b, slot, TASK]
            if row < state.cursor[b, START]:
                rate = state.rates[b, slot, 0]
                state.totals[b, CALLS] += rate * (paced_upto(cluster, row, now) - paced_upto(cluster, row, began))
                enter(cluster, state, b, n, slot, -1.0)
                state.rates[b, slot, 0] = 0.0
                enter(cluster, state, b, n, slot, 1.0)
            slot = state.links[b, slot, NEXT]


@part
def begin(arguments: Any, out: Buffers, b: int, start: int, fresh: bool) -> bool:
    """Begin an episode with what ran when its first row arrived; return whether anything of it ever fits."""
    cluster, rules, state = arguments
    now, rejected = cluster.tasks[start, ARRIVAL], state.last[b, LAST_REJECTED]
    state.cursor[b, ROW], state.cursor[b, FREE], state.cursor[b, LEAVING] = start, 0, 0
    for n in range(cluster.nodes.shape[0]):
        for column in range(6):
            state.nodes[b, n, column] = 0.0
        clear_sums(rules, state, b, n)
        state.nodes[b, n, BILLED_UNTIL] = state.books[b, n, SETTLED] = now
        state.books[b, n, HEAD] = -1.0
    for slot in range(state.links.shape[1]):
        state.links[b, slot, NEXT] = slot + 1
    state.warm[b] = now
    for f in range(state.functions.shape[1]):
        state.functions[b, f, RUNNING_REQUESTS], state.functions[b, f, RART] = 0.0, rules.initial_rart
    state.totals[b] = 0.0
    state.histogram[b] = 0.0
    if fresh:
        state.last[b] = 0.0
    state.cursor[b, START], state.cursor[b, FOUND] = start, 0
    state.cursor[b, WINDOW] = max(min(int(now * cluster.up_rate), cluster.pace.shape[0] - 1), 0)
    last = episode_end(cluster, rules, start)
    first = start // CHECKPOINT_ROWS
    for entry in range(cluster.alive_from[first], cluster.alive_from[first + 1]):
        find(cluster, rules, state, b, cluster.alive[entry], now, last)
    for row in range(first * CHECKPOINT_ROWS, start):
        if cluster.homes[row, HOME] >= 0:
            find(cluster, rules, state, b, row, now, last)
    ended = next_arrival(cluster, rules, state, out, b)
    if not fresh:  # still to be reported: how the step went that ended the episode before
        state.last[b, LAST_REJECTED] = rejected
    return ended == RUNNING


@part
def percentile(histogram: Floats, share: float) -> float:
    """Return the upper edge of the bin in which the given share of the calls is reached."""
    wanted = share * histogram.sum()
    total = 0.0
    for index in range(histogram.size):
        total += histogram[index]
        if total >= wanted:
            return 1.0 + (index + 1) * HISTOGRAM_WIDTH
    return 1.0 + histogram.size * HISTOGRAM_WIDTH


@part
def close(arguments: Any, out: Buffers, b: int) -> None:
    """Let every instance finish and write the episode's metrics."""
    cluster, rules, state = arguments
    if state.cursor[b, FOUND] > 0:
        let_go(cluster, rules, state, b)
    elapse(cluster, rules, state, b, NEVER)
    totals, metrics, answered = state.totals[b], out.metrics[b], state.histogram[b].sum()
    metrics[0] = totals[RETURN]
    metrics[1] = totals[PLACED]
    metrics[2] = totals[PLACED]
    metrics[3] = totals[CALLS]
    metrics[4] = totals[LATE] / totals[CALLS] if totals[CALLS] > 0.0 else 0.0
    metrics[5] = totals[COST]
    metrics[6] = 0.0
    metrics[7] = totals[RATIO] / answered if answered > 0.0 else 1.0
    metrics[8] = percentile(state.histogram[b], 0.99)
    metrics[9] = totals[COLD_STARTS]
    metrics[10] = totals[REJECTED]


@inline
def step(arguments: Any, out: Buffers, b: int, n: int, _seed: int) -> int:
    """Place the present instance and go on to the next one that fits somewhere."""
    cluster, rules, state = arguments
    state.last[b, LAST_REJECTED] = 0.0
    reward = place(cluster, rules, state, b, n)
    state.cursor[b, ROW] += 1
    ended = next_arrival(cluster, rules, state, out, b)
    reward -= rules.rejection_penalty * state.last[b, LAST_REJECTED]
    out.reward[b] = reward
    state.totals[b, RETURN] += reward
    return ended


@lean_kernel
def settle_until(arguments: Any, b: int, now: float) -> None:
    """Bring the accounts of an episode up to a moment before its next arrival: what left by then is gone."""
    cluster, rules, state = arguments
    elapse(cluster, rules, state, b, now)
    for n in range(cluster.nodes.shape[0]):
        settle(cluster, rules, state, b, n, now)


DYNAMICS = dynamics(__name__, start_range=start_range, begin=begin, step=step, close=close)
