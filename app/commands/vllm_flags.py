"""Flags of `vllm serve` that trillm does not have: each is refused with what to use instead, or why there is nothing to
set. Used by app/commands/foreign_flags.py; pure.

A flag that would have no effect is refused all the same: who gives it counts on what it does.
"""

from __future__ import annotations

_NO_CODE = "no code from outside runs in this server; leave it out"
_TEXT_ONLY = "this server takes text, and no images, video or audio; leave it out"
_ONE_TOKENIZER = "a model is served with the tokeniser in its own directory; leave it out"
_CONFIG = "a model's own config.json says how it is computed; change it there, in a copy of the directory"
_KERNELS = "which kernels compute is chosen by what the hardware has; leave it out, or see --enforce-eager"
_OFFLOAD = "weights are never moved out of the memory they are computed in; use a smaller --dtype, or more ranks (-tp)"
_MAMBA = "models with Mamba layers are not served"
_EXPERTS = "experts are spread by --enable-expert-parallel alone"
_CONTEXT = "one sequence is never cut over several processes; use -tp or -pp"
_REPLICAS = "engines are all started and balanced by one server: --data-parallel-size on one host, --nnodes for ranks"
_RANKS = "trillm starts and connects its ranks by itself; leave it out, or see --nnodes, --node-rank and --master-addr"
_LOADING = "how files are read is chosen by where they lie; leave it out"
_LORA = "adapters are computed in one way only; see --enable-lora, --max-loras, --max-lora-rank and --max-cpu-loras"
_METRICS = "/metrics always has what is measured; leave it out"
_LOGS = "the log is set by --log-level, --disable-access-log and --enable-log-requests"
_COMPILE = "steps are recorded as graphs on GPUs by default; --enforce-eager turns that off, and there is nothing else"
_SLEEP = "sleeping needs no flag: POST /sleep and /wake_up are always there; leave it out"
_MEMORY = "the KV cache is sized by what is free; --kv-cache-memory-bytes sets it (8G is 8 GiB)"
_ATTENTION = "attention is chosen by what the hardware has; leave it out"
_PROBES = "this server looks after its processes by itself; leave it out"
_NOT_DONE = "trillm does not have what it sets; leave it out"

VLLM_SENTENCES: dict[str, str] = {
    "--gpu-memory-utilization --device-memory-utilization": _MEMORY,
    "--swap-space": "sequences without a block are recomputed, not swapped; see --kv-offloading-size",
    "--tokenizer --tokenizer-mode --tokenizer-revision --skip-tokenizer-init": _ONE_TOKENIZER,
    "--trust-remote-code --code-revision --tool-parser-plugin --reasoning-parser-plugin --logits-processors "
    "--io-processor-plugin --worker-cls --worker-extension-cls --scheduler-cls --model-class-overrides": _NO_CODE,
    "--uvicorn-log-level": "use --log-level",
    "--log-config-file --logging-config --log-error-stack --aggregate-engine-logging "
    "--enable-logging-iteration-details --disable-access-log-for-endpoints --enable-log-deltas": _LOGS,
    "--enable-log-outputs": "answers are never written to the log; see --enable-log-requests",
    "--disable-log-stats": "no statistics are written to the log; /metrics has them; leave it out",
    "--enable-chunked-prefill": "long prompts are always computed in chunks, of --max-num-batched-tokens at most; "
    "leave it out",
    "--enable-sleep-mode --sleep-mode-offload-cudagraph --sleep-preserve-parameter-names --enable-cumem-allocator "
    "--enable-nccl-comm-suspend": _SLEEP,
    "--task --runner --convert": "what a model can do is known from its files (embeddings: see --pooler-config)",
    "--hf-token": "set HF_TOKEN in the environment",
    "--hf-overrides --hf-config-path --config-format --quantization-config --rope-scaling --rope-theta": _CONFIG,
    "--disable-sliding-window": _CONFIG,
    "--allow-deprecated-quantization": "weights that cannot be computed are refused; leave it out",
    "--logprobs-mode": "log-probabilities are always those of vLLM's raw_logprobs; leave it out",
    "--return-sampling-mask --use-fp64-gumbel": "how tokens are sampled cannot be set; leave it out",
    "--enable-return-routed-experts --enable-trace-replay --aux-output-config --diffusion-config -dc --engram-config "
    "--weight-transfer-config --kv-events-config --ec-transfer-config --ec-manager-config --watermark-config "
    "--additional-config --reasoning-config --enable-prompt-embeds --kernel-config --enable-flash-late-interaction "
    "--enable-scale-out --tokens-only --enable-mixed-moe-lora-format --enable-hc-sp --fingerprint-mode "
    "--fingerprint-value": _NOT_DONE,
    "--model-impl": "what computes is chosen by the architecture; leave it out",
    "--renderer-num-workers": "more processes that take requests: --api-server-count",
    "--safetensors-load-strategy --safetensors-prefetch-num-threads --safetensors-prefetch-block-size "
    "--model-loader-extra-config --ignore-patterns --use-tqdm-on-load --pt-load-map-location "
    "--max-parallel-loading-workers": _LOADING,
    "--attention-backend --attention-config -ac --kv-sharing-fast-prefill --disable-cascade-attn "
    "--disable-hybrid-kv-cache-manager --swa-bounded-replay --sparse-indexer-topk-backend --gdn-prefill-backend "
    "--kda-prefill-backend --kda-decode-backend": _ATTENTION,
    "--mamba-backend --mamba-ssu-algorithm --enable-mamba-cache-stochastic-rounding --mamba-cache-philox-rounds "
    "--mamba-cache-dtype --mamba-ssm-cache-dtype --mamba-block-size --mamba-cache-mode "
    "--enable-mamba-shared-prefix-checkpoint --replayssm-buffer-len --use-replayssm": _MAMBA,
    "--distributed-executor-backend --distributed-timeout-seconds --cpu-distributed-timeout-seconds --numa-bind "
    "--numa-bind-nodes --numa-bind-cpus --ray-workers-use-nsight --disable-custom-all-reduce "
    "--disable-nccl-for-dp-synchronization --enable-shm-tensor-arena --dp-sync-interval "
    "--enable-batch-sharded-sampling": _RANKS,
    "--device-ids": "set CUDA_VISIBLE_DEVICES in the environment",
    "--decode-context-parallel-size -dcp --dcp-comm-backend --dcp-q-replicate --dcp-kv-cache-interleave-size "
    "--cp-kv-cache-interleave-size --prefill-context-parallel-size -pcp": _CONTEXT,
    "--data-parallel-rank -dpn --data-parallel-start-rank -dpr --data-parallel-size-local -dpl --data-parallel-address "
    "-dpa --data-parallel-rpc-port -dpp --data-parallel-backend -dpb --data-parallel-hybrid-lb -dph "
    "--data-parallel-external-lb -dpe --data-parallel-multi-port-external-lb -dpm": _REPLICAS,
    "--enable-ep-weight-filter --all2all-backend --enable-dbo --ubatch-size --dbo-decode-token-threshold "
    "--dbo-prefill-token-threshold --enable-elastic-ep --elastic-ep-max-dp-size --enable-eplb --eplb-config "
    "--expert-placement-strategy": _EXPERTS,
    "--enable-fault-tolerance --fault-tolerance-config --data-parallel-supervisor-port "
    "--dp-supervisor-probe-interval-s --dp-supervisor-probe-timeout-s --dp-supervisor-probe-failure-threshold "
    "--fail-on-environ-validation": _PROBES,
    "--prefix-caching-hash-algo": "blocks are always found by SHA-256; leave it out",
    "--prefix-cache-retention-interval --prefix-match-unit": "see --enable-prefix-caching and --block-size",
    "--kv-cache-dtype-skip-layers": "all layers' keys and values have one type: --kv-cache-dtype",
    "--offload-backend --cpu-offload-gb --cpu-offload-params --offload-group-size --offload-num-in-group "
    "--offload-prefetch-step --offload-params": _OFFLOAD,
    "--language-model-only --limit-mm-per-prompt --enable-mm-embeds --media-io-kwargs --mm-processor-kwargs "
    "--mm-processor-cache-gb --mm-processor-cache-type --mm-hasher-algorithm --mm-shm-cache-max-object-size-mb "
    "--mm-encoder-only --mm-encoder-tp-mode --mm-encoder-attn-backend --mm-encoder-attn-dtype "
    "--mm-encoder-fp8-scale-path --mm-encoder-fp8-scale-save-path --mm-encoder-fp8-scale-save-margin "
    "--interleave-mm-strings --skip-mm-profiling --video-pruning-rate --video-pruning-method --mm-tensor-ipc "
    "--mm-processor-device --mm-ipc-gpu-memory-gb --mm-device-do-normalize --disable-chunked-mm-input "
    "--allowed-local-media-path --allowed-media-domains --trust-request-mm-kwargs --default-mm-loras "
    "--enable-tower-connector-lora": _TEXT_ONLY,
    "--lora-dtype --fully-sharded-loras --lora-target-modules --specialize-active-lora --enable-moe-shared-loras "
    "--max-lora-cls-labels --lora-extra-vocab-size": _LORA,
    "--show-hidden-metrics-for-version --per-request-spec-decode-metrics --kv-cache-metrics "
    "--kv-cache-metrics-sample --custom-histogram-buckets --cudagraph-metrics --enable-mfu-metrics "
    "--enable-per-request-metrics": _METRICS,
    "--enable-layerwise-nvtx-tracing --profiler-config": "POST /start_profile writes profiles, into --profiler-dir",
    "--max-num-scheduled-tokens": "use --max-num-batched-tokens",
    "--max-num-active-seqs": "use --max-num-seqs",
    "--max-num-queued-tokens": "use --max-num-queued-reqs",
    "--long-prefill-token-threshold-adaptive": "chunks of prompts already follow the load; leave it out",
    "--scheduler-reserve-full-isl --watermark --prefill-schedule-interval": "the scheduler has no such knob; see "
    "--max-num-seqs and --max-num-batched-tokens",
    "--compilation-config -cc --cudagraph-capture-sizes --max-cudagraph-capture-size --optimization-level "
    "--performance-mode --ir-op-priority --jit-monitor-mode --jit-monitor-verbose": _COMPILE,
    "--enable-flashinfer-autotune --moe-backend --linear-backend": _KERNELS,
    "--spec-method --spec-model --spec-tokens": "use --speculative-config",
    "--structured-outputs-config --guided-decoding-backend": "grammars are always built by one library, as strict as "
    "they are written; leave it out",
    "--chat-template-content-format": "how a template takes content is known from the template; leave it out",
    "--default-chat-template-kwargs": "requests say `chat_template_kwargs` themselves; or set the default in a "
    "--chat-template of your own",
    "--exclude-tools-when-tool-choice-none": 'tools are never shown to the model with tool_choice "none"; leave it out',
    "--tool-strict-level": _NOT_DONE,
    "--enable-tokenizer-info-endpoint": "/tokenizer_info is not served; /tokenize and /detokenize are",
    "--cohere-is-reasoning-model --cohere-format --anthropic-disabled-thinking-effort": _NOT_DONE,
    "--grpc --grpc-port": "this server speaks HTTP only",
    "--enable-ssl-refresh": "certificates are read at the start: restart the server for new ones",
    "--ssl-ciphers": "ciphers are those of OpenSSL's default; leave it out",
    "--disable-fastapi-docs --enable-offline-docs": "the description of the API at /openapi.json and its page need "
    "no network; leave it out",
    "--h11-max-incomplete-event-size --h11-max-header-count": "bounds of headers are fixed; leave it out",
    "--disable-log-requests": "requests are not logged unless --enable-log-requests asks for it; leave it out",
    "--collect-detailed-traces": "traces always have a request's phases; what one step takes is /start_profile's to "
    "tell; leave it out",
    "--max-seq-len-to-capture": "graphs are not bounded by length; leave it out",
    "--use-v2-block-manager --multi-step-stream-outputs --num-scheduler-steps": "vLLM has dropped it; leave it out",
}
"""By the flags, with spaces between them."""
