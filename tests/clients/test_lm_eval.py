"""lm_eval, the program: it scores the pool as it would score one right engine."""

import importlib.util
import json
from pathlib import Path

import pytest

from tests.clients.evaluation import CHOICES, QUESTIONS, Evaluation, ids_of, likeliest
from tests.clients.pool import Pool, chat_text, completion_text

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        importlib.util.find_spec("lm_eval") is None, reason="the extra `clients` is not installed"
    ),
]


def test_local_completions(pool: Pool, tmp_path: Path) -> None:
    """Each text it generates is the model's own, and each log probability that it compares is that
    of an engine alone: scored by right answers, both tasks are at 1."""
    alone = f"{pool.prefill[0].url}/v1/completions"
    for engine in pool.decode:
        engine.ask("reset")
    docs = [
        {
            "question": question,
            "answer": completion_text(ids_of(question), 8),
            "choices": CHOICES,
            "likeliest": likeliest(alone, question),
        }
        for question in QUESTIONS
    ]
    assert len({doc["likeliest"] for doc in docs}) > 1, "a data set that shows nothing"
    results = Evaluation(tmp_path, docs).run(
        "local-completions",
        f"{pool.base}/completions",
        "pool_generate,pool_choose",
        # One prompt in a request, or several, which one instance serves.
        f"--batch_size={1 if pool.mode == 'READ' else 3}",
        tokenizer="./tokenizer",
        tokenizer_backend="huggingface",
    )
    assert results["pool_generate"]["exact_match,none"] == 1.0
    assert results["pool_choose"]["acc,none"] == 1.0
    decoded = [json.loads(leg["body"]) for engine in pool.decode for leg in engine.last("decode")]
    assert not any(body.get("echo") for body in decoded), "decode knows no prompt's probabilities"
    assert bool(decoded) == (pool.mode == "READ"), "several prompts are no pair's"


@pytest.mark.usefixtures("by_pairs")
@pytest.mark.parametrize("shared_pool", ["WRITE"], indirect=True)  # a run costs its imports
def test_local_chat_completions(pool: Pool, tmp_path: Path) -> None:
    """The same of chats, which it only generates."""
    docs = [
        {"question": one, "answer": chat_text(8, [{"role": "user", "content": one}])}
        for one in QUESTIONS
    ]
    results = Evaluation(tmp_path, docs).run(
        "local-chat-completions",
        f"{pool.base}/chat/completions",
        "pool_generate",
        "--apply_chat_template",
    )
    assert results["pool_generate"]["exact_match,none"] == 1.0
