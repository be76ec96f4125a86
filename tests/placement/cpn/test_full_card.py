"""More jobs on a card than the books can hold, as a cluster's own scheduler may send them."""

from placement.cpn.allocation import Allocator, Moment, OnCard
from placement.cpn.config import CpnSettings
from placement.cpn.runtimes import FromTable, Tables
from placement.cpn.topology import read
from placement.cpn.warming import NETWORK, small_moment
from sched_env.jobs import synthetic
from sched_env.jobs.runtime import MOST_ON_A_CARD


def test_a_card_with_too_many_jobs_is_full_and_the_others_are_used():
    network = read(NETWORK, "test")
    moment = small_moment(network)
    (held,) = moment.on_cards
    crowd = [OnCard(held.job, held.attempt, 10.0, 0.0, True) for _ in range(2 * MOST_ON_A_CARD)]
    allocator = Allocator(
        CpnSettings(topology="", strategy="fifo"), Tables(FromTable(synthetic.runtime(network.table.card_types)))
    )
    for _ in range(2):  # the second round reads what the first may have written beside the card's own slots
        found = allocator.round(network, Moment(1.0, crowd, moment.waiting, moment.up))
        other = next(name for name in network.cards if name != held.attempt.card)
        assert [decision.card for decision in found.decisions] == [other] * len(found.decisions)
        assert len(found.decisions) == len(moment.waiting), "all of them share the card that is free"
