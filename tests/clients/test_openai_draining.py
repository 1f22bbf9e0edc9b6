"""The openai client, while the router drains."""

import openai
import pytest

from tests.clients.pool import ASKED, KEY, MODEL
from tests.e2e.stack import Stack, http, until

pytestmark = pytest.mark.e2e


def test_a_draining_router() -> None:
    """It is an APIStatusError of status 503, which the client would try again."""
    with Stack() as stack:
        stack.fleet([1], [1])
        base = f"{stack.url}/v1"
        with openai.OpenAI(base_url=base, api_key=KEY, max_retries=0) as client:
            client.chat.completions.create(model=MODEL, messages=ASKED)
            status, _ = http("POST", f"{stack.admin}/drain")
            assert status == 200
            until(
                lambda: http("GET", f"{stack.url}/health")[0] == 503, "the worker has heard of it"
            )
            with pytest.raises(openai.APIStatusError) as caught:
                client.chat.completions.create(model=MODEL, messages=ASKED)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["x-pd-error"] == "draining"
    assert caught.value.type == "service_unavailable"
