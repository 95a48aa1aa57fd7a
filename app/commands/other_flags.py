"""Flags of SGLang's and llama.cpp's servers, for those who come from there: each with what trillm calls it. Used by
app/commands/foreign_flags.py; pure. What is spelt as vLLM spells it is in app/commands/vllm_flags.py.
"""

from __future__ import annotations

_MODEL = "the model comes after `serve`, as in `trillm serve Qwen/Qwen3-0.6B`"
_LENGTH = "use --max-model-len"
_SEQUENCES = "use --max-num-seqs"
_STEP = "use --max-num-batched-tokens"
_MEMORY = "the KV cache is sized by what is free; --kv-cache-memory-bytes sets it (8G is 8 GiB)"
_CACHE_TYPE = "use --kv-cache-dtype"
_GPUS = "a model is computed whole on a GPU or on the CPU (--device), or cut over several GPUs (-tp)"
_GUESSES = "use --speculative-config"
_ADAPTERS = "use --lora-modules NAME=DIRECTORY"
_HOSTS = "use --nnodes, --node-rank, --master-addr and --master-port"
_ALWAYS = "this is always on; leave it out"
_REQUESTS = "requests say so themselves; defaults are set by --override-generation-config"
_TOKENISER = "a model is served with the tokeniser in its own directory; leave it out"

SGLANG_SENTENCES: dict[str, str] = {
    "--model-path": _MODEL,
    "--tokenizer-path": _TOKENISER,
    "--context-length": _LENGTH,
    "--mem-fraction-static --max-total-tokens": _MEMORY,
    "--max-running-requests": _SEQUENCES,
    "--max-queued-requests": "use --max-num-queued-reqs",
    "--chunked-prefill-size --max-prefill-tokens": _STEP,
    "--tp --tp-size": "use -tp (--tensor-parallel-size)",
    "--dp --dp-size": "use -dp (--data-parallel-size)",
    "--pp --pp-size": "use -pp (--pipeline-parallel-size)",
    "--ep --ep-size --expert-parallel-size": "use --enable-expert-parallel",
    "--schedule-policy": "use --scheduling-policy (fcfs or priority)",
    "--disable-radix-cache": "use --no-enable-prefix-caching",
    "--disable-cuda-graph": "use --enforce-eager",
    "--cuda-graph-max-bs --cuda-graph-bs --enable-torch-compile": "graphs are recorded for all batches up to "
    "--max-num-seqs; --enforce-eager records none",
    "--disable-overlap-schedule": "use --no-async-scheduling",
    "--enable-metrics": "/metrics is always there; leave it out",
    "--log-requests --log-requests-level": "use --enable-log-requests and --max-log-len",
    "--random-seed": "use --seed",
    "--grammar-backend --sampling-backend --prefill-attention-backend --decode-attention-backend": "what computes is "
    "chosen by what the hardware has; leave it out",
    "--speculative-algorithm --speculative-draft-model-path --speculative-num-steps --speculative-num-draft-tokens "
    "--speculative-eagle-topk": _GUESSES,
    "--lora-paths": _ADAPTERS,
    "--max-loras-per-batch": "use --max-loras",
    "--dist-init-addr --nccl-init-addr": _HOSTS,
    "--is-embedding": "/v1/embeddings is always there; see --pooler-config",
    "--enable-hierarchical-cache --hicache-ratio --hicache-size": "use --kv-offloading-size",
    "--disaggregation-mode": "use --prefill-engines and --decode-engines, or `trillm proxy`",
    "--skip-server-warmup --watchdog-timeout --enable-mixed-chunk": _ALWAYS,
    "--base-gpu-id": "set CUDA_VISIBLE_DEVICES in the environment",
    "--json-model-override-args": "a model's own config.json says how it is computed; change it there",
    "--file-storage-path --enable-multimodal": "this server takes text only; leave it out",
}
"""By the flags, with spaces between them."""

LLAMA_CPP_SENTENCES: dict[str, str] = {
    "-m": _MODEL,
    "-hf -hfr --hf-repo -hff --hf-file": "fetch the file first (`hf download REPOSITORY FILE`), then `trillm serve "
    "FILE`; safetensors are fetched by name",
    "-mu --model-url": "fetch the file first; then `trillm serve FILE.gguf`",
    "-c --ctx-size": _LENGTH,
    "-ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -ot --override-tensor": _GPUS,
    "-np --parallel": _SEQUENCES,
    "-t -tb --threads-batch": "use --threads",
    "-b -ub --batch-size --ubatch-size": _STEP,
    "-ctk -ctv --cache-type-k --cache-type-v": _CACHE_TYPE,
    "-a --alias": "use --served-model-name",
    "-fa --flash-attn -cb --cont-batching --jinja --metrics --slots --props -kvu --kv-unified": _ALWAYS,
    "--no-webui --webui": "use --no-console",
    "--embedding --embeddings --pooling": "/v1/embeddings is always there; see --pooler-config",
    "--chat-template-file": "use --chat-template FILE",
    "--api-key-file": "put the key into the environment, as VLLM_API_KEY",
    "--ssl-key-file": "use --ssl-keyfile",
    "--ssl-cert-file": "use --ssl-certfile",
    "--lora --lora-scaled": _ADAPTERS,
    "-md --model-draft --draft-max --draft --draft-n": _GUESSES,
    "--mlock --no-mmap --mmap --no-kv-offload -nkvo": "weights are always mapped, and keys and values are where the "
    "model is computed; leave it out",
    "--reasoning-format": "use --reasoning-parser",
    "--temp --top-k --top-p --min-p --repeat-penalty --presence-penalty --frequency-penalty -n-predict --n-predict "
    "--predict": _REQUESTS,
    "--rope-scaling --rope-freq-base --rope-freq-scale --yarn-orig-ctx": "a model's own config.json says how it is "
    "computed; change it there",
    "--mmproj -mm --image": "this server takes text only; leave it out",
    "-to --timeout": "use --request-timeout",
    "--verbose -v --log-verbosity -lv": "use --log-level debug",
    "--list-devices": "see `trillm check`",
}
"""By the flags, with spaces between them."""
