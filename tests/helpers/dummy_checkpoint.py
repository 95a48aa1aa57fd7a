"""A checkpoint directory without weights, for `--load-format dummy`: the whole server runs on it in tests.

Made from nothing but the text below, in some milliseconds and always the same: a byte-level BPE of 512 tokens, a ChatML
template, and the config of a tiny Llama.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 512
MAX_POSITION_EMBEDDINGS = 2048
ENDOFTEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"

PARAGRAPH = """
The harbour was quiet when the first boats came home. Over the water hung a thin mist, and from the houses along the
quay one could hear the clatter of breakfast plates. "How many did you catch today?" asked the girl who kept the books.
"Four hundred and twelve herring, thirty mackerel and one very old boot," answered her uncle; he laughed, and the whole
crew laughed with him. She wrote the numbers down: 412, 30, 1. Then she added them up, because adding things up was what
she liked best, and the answer was 443. There are people who count in order to know, and others who know only in order
to count. What is the weather going to be tomorrow? Nobody could tell, not even the lighthouse keeper, who had been
watching the sky for more than forty years. The answer to a question like this one is always the same: wait and see.
Für die Boote, les bateaux, лодки, 船: every language has its own word, and each of them floats. Yes or no, true or
false, {"name": "herring", "count": 412, "fresh": true}, [1, 2, 3]; in the end everything was written into the book.
"""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def dummy_tokenizer() -> Tokenizer:
    """Byte-level BPE with exactly VOCAB_SIZE ids: three special tokens, the 256 bytes, and merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=1,
        special_tokens=[ENDOFTEXT, IM_START, IM_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([PARAGRAPH], trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def write_dummy_checkpoint(directory: Path) -> Path:
    """Write config.json, generation_config.json, tokenizer.json and tokenizer_config.json into `directory`.

    The directory is made if it does not exist, and is returned.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = dummy_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    eos = tokenizer.token_to_id(IM_END)
    endoftext = tokenizer.token_to_id(ENDOFTEXT)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": MAX_POSITION_EMBEDDINGS,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": endoftext,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": MAX_POSITION_EMBEDDINGS,
        "bos_token": None,
        "eos_token": IM_END,
        "pad_token": ENDOFTEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    generation_config = {"eos_token_id": [eos, endoftext], "pad_token_id": endoftext}
    _write(directory / "config.json", config)
    _write(directory / "tokenizer_config.json", tokenizer_config)
    _write(directory / "generation_config.json", generation_config)
    return directory


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
