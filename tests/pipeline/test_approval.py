import pytest

from pipeline import approval
from pipeline.errors import RegistryError


def response(options=("Approve",), user=None, comment=None):
    return {"chosen_options": list(options), "responded_by_user": user, "params_input": {"comment": comment}}


ALICE = {"id": "alice", "name": "Alice"}


def test_a_named_persons_approve_is_taken_with_their_words():
    answer = approval.require_approved(response(user=ALICE, comment="looks good"))
    assert answer == approval.Answer(approved=True, person="Alice", comment="looks good")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        response(options=["Reject"], user=ALICE),
        response(options=["Approve"], user=None),  # a default taken after a time-out
        response(options=["Approve", "Reject"], user=ALICE),
        response(options=[], user=ALICE),
        response(options=["approve"], user=ALICE),
        response(user={"id": "", "name": ""}),
    ],
)
def test_anything_else_is_refused(answer):
    with pytest.raises(RegistryError, match="promotion refused"):
        approval.require_approved(answer)


def test_a_time_out_is_told_from_a_rejection():
    assert approval.read(response(options=["Reject"])).comment == "nobody answered in time"
    assert approval.read(response(options=["Reject"], user=ALICE, comment="no")) == approval.Answer(
        approved=False, person="Alice", comment="no"
    )
