"""A node that checks tokens reports why it cannot."""

from typing import cast

import pytest

from admin_plant import NOW_NS
from penstock.base.errors import ForbiddenError, TokenError
from penstock.security.live.client import AdminClient
from penstock.security.live.token_watch import ROLE_MISSING, TokenWatch
from waiting import wait_until


class Refusing:
    """A server that does not let this client check tokens."""

    def verification(self) -> object:
        raise ForbiddenError("verification needs the role filter")

    def close(self) -> None:
        """No connection is open."""


@pytest.mark.spec("ADM-5")
def test_a_client_without_the_role_is_logged_where_tokens_are_refused() -> None:
    watch = TokenWatch(cast(AdminClient, Refusing()), None, lambda event: None)
    watch.start()
    try:
        wait_until(lambda: watch.trouble == ROLE_MISSING, "the refusal")
        assert not watch.is_in_touch
        with pytest.raises(TokenError, match="its client needs the role filter"):
            watch.gate.verify("a token", NOW_NS)
    finally:
        watch.stop()
