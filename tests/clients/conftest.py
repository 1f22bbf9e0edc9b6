"""One pool for each transfer mode, shared by all clients."""

from collections.abc import Iterator

import pytest

from tests.clients.pool import Pool


@pytest.fixture(scope="session", params=["READ", "WRITE"])
def shared_pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(request.param) as pool:
        yield pool
        print(pool.stack.log())  # pytest shows it with a failure only


@pytest.fixture
def pool(shared_pool: Pool) -> Iterator[Pool]:
    """At rest before the test and after it, whatever its client did."""
    yield shared_pool
    shared_pool.pace()
    shared_pool.check_rest()


@pytest.fixture
def by_pairs(pool: Pool) -> Iterator[None]:
    """All that the test asks a model is served by prefill and decode."""
    plain, decode = pool.legs("plain"), pool.legs("decode")
    yield
    assert pool.legs("plain") == plain
    assert pool.legs("decode") > decode
