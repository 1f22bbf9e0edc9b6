"""One run of lm_eval: its data set, tokenizer and tasks in a folder, without a network."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.clients.pool import MODEL
from tests.e2e.stack import http

TASKS = Path(__file__).parent / "tasks"
QUESTIONS = tuple(f"Question {number} :" + " tell me more" * number * 3 for number in range(6))
CHOICES = ("long rivers", "two towns", "green hills")
_WORDS = sorted({word for text in (*QUESTIONS, *CHOICES) for word in text.split()})
IDS = {"<unk>": 0, "</s>": 1, **{word: number for number, word in enumerate(_WORDS, 2)}}
"""A tokenizer of words, for what the harness sends: token ids in place of text."""


def ids_of(text: str) -> list[int]:
    return [IDS[word] for word in text.split()]


class Evaluation:
    def __init__(self, folder: Path, docs: list[dict[str, Any]]) -> None:
        self._folder = folder
        for path in TASKS.glob("*.yaml"):
            shutil.copy(path, folder)
        lines = (json.dumps(doc) for doc in docs)
        (folder / "questions.jsonl").write_text("\n".join(lines))
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(_tokenizer()))
        names = {"unk_token": "<unk>", "eos_token": "</s>"}
        (folder / "tokenizer" / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names})
        )

    def run(self, model: str, url: str, tasks: str, *more: str, **model_args: object) -> Any:
        """The results file's `results`, by task."""
        known = {"model": MODEL, "base_url": url, "num_concurrent": 4, "max_retries": 1}
        arguments = ",".join(f"{k}={v}" for k, v in {**known, **model_args}.items())
        command = [sys.executable, "-m", "lm_eval", "run", "--model", model, "--tasks", tasks]
        command += ["--include_path", ".", "--output_path", "out", "--model_args", arguments, *more]
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=os.environ
            | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(self._folder)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        (found,) = self._folder.glob("out/**/results_*.json")
        return json.loads(found.read_text())["results"]


def likeliest(url: str, question: str) -> int:
    """The number of the choice that an engine finds likeliest after the question, by the log
    probabilities of its tokens."""
    begin = ids_of(question)
    sums = []
    for choice in CHOICES:
        body = {"model": MODEL, "prompt": begin + ids_of(choice), "max_tokens": 1}
        status, answer = http("POST", url, body | {"logprobs": 1, "echo": True})
        assert status == 200, answer
        numbers = json.loads(answer)["choices"][0]["logprobs"]["token_logprobs"]
        sums.append(sum(numbers[len(begin) : -1]))
    return sums.index(max(sums))


def _tokenizer() -> dict[str, Any]:
    special = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    added = [{"id": IDS[n], "content": n, "special": True, **special} for n in ("<unk>", "</s>")]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": IDS, "unk_token": "<unk>"},
    }
