"""Publisher ids from the administration server."""

import pytest

from admin_plant import Plant
from penstock.admin import AdminLimits
from penstock.admin.core.publishers import EPOCH_STEP
from penstock.base.errors import ForbiddenError, LimitError
from penstock.base.limits import EPOCH_MAX
from penstock.security.core.brokering import PublisherClaimed, PublisherRequest


def claim(plant: Plant, name: str = "quotes", client: str = "quill") -> PublisherClaimed:
    return plant.core.claim_publisher(plant.caller(client), PublisherRequest(name=name), plant.now_ns)


@pytest.mark.spec("FILT-15")
def test_a_name_keeps_its_id_and_gets_a_new_epoch_at_each_registration() -> None:
    plant = Plant()
    first = claim(plant)
    assert (first.name, first.epoch) == ("quotes", 1)
    assert claim(plant) == PublisherClaimed(name="quotes", publisher_id=first.publisher_id, epoch=2)
    restarted = plant.again(plant.now_ns)
    assert claim(restarted) == PublisherClaimed(name="quotes", publisher_id=first.publisher_id, epoch=3)


@pytest.mark.spec("FILT-15")
def test_no_two_names_share_an_id() -> None:
    plant = Plant()
    made = [claim(plant, name, client) for name in ("a", "b") for client in ("quill", "feed")]
    assert len({each.publisher_id for each in made}) == 4
    with pytest.raises(ForbiddenError, match="quill/a"):
        plant.register(publisher_id=made[0].publisher_id)
    plant.register(publisher_id=made[1].publisher_id)  # its own id
    plant = Plant()
    plant.register(publisher_id=1)  # the first id that the random numbers produce
    assert claim(plant).publisher_id != 1


def test_a_server_that_takes_over_repeats_no_epoch() -> None:
    plant = Plant()
    known = claim(plant)
    standby = plant.again(plant.now_ns)
    unknown = claim(plant)
    standby.core.promote("the other one is gone", plant.now_ns)
    assert claim(standby).epoch == known.epoch + EPOCH_STEP + 1 > unknown.epoch


def test_names_and_epochs_are_bounded() -> None:
    plant = Plant(AdminLimits(publishers_max=3, client_publishers_max=2))
    claim(plant, "a")
    claim(plant, "b")
    with pytest.raises(LimitError, match="quill has 2"):
        claim(plant, "c")
    claim(plant, "a", "feed")
    with pytest.raises(LimitError, match="3 publishers"):
        claim(plant, "b", "feed")
    claim(plant, "b")
    held = plant.core.state.publishers["quill/b"]
    plant.core.state.put("publisher", "quill/b", type(held)("quill", "b", held.publisher_id, EPOCH_MAX))
    with pytest.raises(LimitError, match="epochs"):
        claim(plant, "b")
