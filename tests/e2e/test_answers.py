"""The unmodified openai client gets right answers, in both transfer modes."""

from collections.abc import Callable

import openai
import pytest

from sidecar.sim.model import expected_text
from tests.e2e.stack import Stack

pytestmark = pytest.mark.e2e

CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Tell me of Paris"}]


@pytest.mark.parametrize("mode", ["READ", "WRITE"])
@pytest.mark.parametrize("workers", [1, 2])
def test_openai_client_gets_the_models_text(
    stack_of: Callable[..., Stack], mode: str, workers: int
) -> None:
    """Completions and chat, streamed and whole: the text is what the model must say."""
    stack = stack_of(workers=workers)
    stack.fleet([1, 1], [1, 1], mode)
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
        for i in range(3):
            prompt = f"Prompt number {i} about the weather"
            expected = expected_text("completions", {"prompt": prompt}, 12)
            whole = client.completions.create(model="sim-model", prompt=prompt, max_tokens=12)
            assert whole.choices[0].text == expected
            stream = client.completions.create(
                model="sim-model", prompt=prompt, max_tokens=12, stream=True
            )
            assert "".join(c.choices[0].text for c in stream) == expected
            expected = expected_text("chat", {"messages": CHAT}, 9)
            chat = client.chat.completions.create(model="sim-model", messages=CHAT, max_tokens=9)
            assert chat.choices[0].message.content == expected
            chunks = client.chat.completions.create(
                model="sim-model", messages=CHAT, max_tokens=9, stream=True
            )
            assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected
        assert [m.id for m in client.models.list()] == ["sim-model"]
