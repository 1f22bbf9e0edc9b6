"""Writes a model of random weights, small enough for two cores: `python tiny_model.py FOLDER`.

Run by the engines' own interpreter. Its attention is loud, so that every token of the greedy answer
depends on the whole prompt: KV that is missing, or another request's, shows in the text.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
CONTEXT_TOKENS = 4096
SPECIAL = ["<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
TEXT = [
    "a router places each request on a prefill slot and a decode slot",
    "rivers run from the mountains to the sea and carry sand",
    "How do you do? Thank you, I am well. The weather is fine today.",
    '{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}',
]
CHAT = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>"
    "{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LOUDNESS = {"q_proj": 0.35, "k_proj": 0.35, "v_proj": 0.6, "o_proj": 0.6}
"""standard deviation of the attention's weights"""
QUIET = 0.15
"""...and of all others"""


def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes and some pairs of them, so that any text has tokens."""
    coder = Tokenizer(models.BPE(unk_token="<unk>"))
    coder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    coder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    coder.train_from_iterator(TEXT * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=coder,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
        model_max_length=CONTEXT_TOKENS,
    )
    fast.chat_template = CHAT
    return fast


def model() -> LlamaForCausalLM:
    torch.manual_seed(7)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=CONTEXT_TOKENS,
            bos_token_id=1,
            eos_token_id=2,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        for name, weights in made.named_parameters():
            if weights.dim() == 2:
                weights.normal_(0, LOUDNESS.get(name.split(".")[-2], QUIET))
    return made.to(torch.bfloat16)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save_pretrained(folder)
    model().save_pretrained(folder)


if __name__ == "__main__":
    main()
