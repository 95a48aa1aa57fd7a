"""Who comes from another server is told, of each flag that there is not, what to use or why there is nothing to set."""

from __future__ import annotations

import re

import pytest

from app import cli
from app.commands.flag_text import flag_texts
from app.commands.foreign_flags import SENTENCES, foreign_flags, sentence_of
from app.own_command import own_command
from tests.helpers.command_line import say

VLLM = """
--headless --api-server-count -asc --config --grpc --lora-modules --chat-template --chat-template-content-format
--trust-request-chat-template --trust-request-mm-kwargs --default-chat-template-kwargs --response-role
--return-tokens-as-token-ids --enable-auto-tool-choice --exclude-tools-when-tool-choice-none --tool-call-parser
--tool-parser-plugin --tool-strict-level --tool-server --max-log-len --enable-prompt-tokens-details
--enable-per-request-metrics --enable-server-load-tracking --enable-force-include-usage --sse-keep-alive-interval
--enable-tokenizer-info-endpoint --enable-log-outputs --enable-log-deltas --cohere-is-reasoning-model --cohere-format
--anthropic-disabled-thinking-effort --log-error-stack --tokens-only --enable-scale-out --fingerprint-mode
--fingerprint-value --host --port --grpc-port --data-parallel-supervisor-port --dp-supervisor-probe-interval-s
--dp-supervisor-probe-timeout-s --dp-supervisor-probe-failure-threshold --uds --uvicorn-log-level
--disable-uvicorn-access-log --disable-access-log-for-endpoints --allow-credentials --allowed-origins
--allowed-methods --allowed-headers --api-key --ssl-keyfile --ssl-certfile --ssl-ca-certs --enable-ssl-refresh
--ssl-cert-reqs --ssl-ciphers --root-path --middleware --enable-request-id-headers --disable-fastapi-docs
--h11-max-incomplete-event-size --h11-max-header-count --enable-offline-docs --enable-flash-late-interaction --model
--runner --convert --tokenizer --tokenizer-mode --trust-remote-code --dtype --seed --hf-config-path
--allowed-local-media-path --allowed-media-domains --revision --code-revision --tokenizer-revision --max-model-len
--quantization -q --quantization-config --allow-deprecated-quantization --enforce-eager --enable-return-routed-experts
--return-sampling-mask --max-logprobs --logprobs-mode --use-fp64-gumbel --enable-trace-replay --disable-sliding-window
--disable-cascade-attn --skip-tokenizer-init --enable-prompt-embeds --served-model-name --config-format --hf-token
--hf-overrides --model-class-overrides --pooler-config --generation-config --override-generation-config
--enable-sleep-mode --sleep-mode-offload-cudagraph --sleep-preserve-parameter-names --enable-cumem-allocator
--enable-nccl-comm-suspend --model-impl --logits-processors --io-processor-plugin --renderer-num-workers --load-format
--download-dir --safetensors-load-strategy --safetensors-prefetch-num-threads --safetensors-prefetch-block-size
--model-loader-extra-config --ignore-patterns --use-tqdm-on-load --pt-load-map-location --attention-backend
--mamba-backend --mamba-ssu-algorithm --enable-mamba-cache-stochastic-rounding --mamba-cache-philox-rounds
--reasoning-parser --reasoning-parser-plugin --distributed-executor-backend --pipeline-parallel-size -pp --master-addr
--master-port --nnodes -n --node-rank -r --distributed-timeout-seconds --cpu-distributed-timeout-seconds --numa-bind
--numa-bind-nodes --numa-bind-cpus --device-ids --tensor-parallel-size -tp --decode-context-parallel-size -dcp
--dcp-comm-backend --dcp-q-replicate --dcp-kv-cache-interleave-size --cp-kv-cache-interleave-size
--prefill-context-parallel-size -pcp --data-parallel-size -dp --data-parallel-rank -dpn --data-parallel-start-rank
-dpr --data-parallel-size-local -dpl --data-parallel-address -dpa --data-parallel-rpc-port -dpp
--data-parallel-backend -dpb --data-parallel-hybrid-lb -dph --data-parallel-external-lb -dpe
--data-parallel-multi-port-external-lb -dpm --enable-hc-sp --enable-expert-parallel -ep
--enable-batch-sharded-sampling --enable-ep-weight-filter --all2all-backend --enable-dbo --enable-shm-tensor-arena
--ubatch-size --enable-elastic-ep --elastic-ep-max-dp-size --dbo-decode-token-threshold --dp-sync-interval
--dbo-prefill-token-threshold --disable-nccl-for-dp-synchronization --enable-eplb --eplb-config
--expert-placement-strategy --max-parallel-loading-workers --ray-workers-use-nsight --disable-custom-all-reduce
--worker-cls --worker-extension-cls --enable-fault-tolerance --fault-tolerance-config --block-size
--gpu-memory-utilization --device-memory-utilization --kv-cache-memory-bytes --kv-cache-dtype
--num-gpu-blocks-override --enable-prefix-caching --prefix-caching-hash-algo --prefix-cache-retention-interval
--kv-cache-dtype-skip-layers --kv-sharing-fast-prefill --swa-bounded-replay --mamba-cache-dtype
--mamba-ssm-cache-dtype --mamba-block-size --prefix-match-unit --mamba-cache-mode
--enable-mamba-shared-prefix-checkpoint --replayssm-buffer-len --use-replayssm --kv-offloading-size
--kv-offloading-backend --offload-backend --cpu-offload-gb --cpu-offload-params --offload-group-size
--offload-num-in-group --offload-prefetch-step --offload-params --language-model-only --limit-mm-per-prompt
--enable-mm-embeds --media-io-kwargs --mm-processor-kwargs --mm-processor-cache-gb --mm-processor-cache-type
--mm-hasher-algorithm --mm-shm-cache-max-object-size-mb --mm-encoder-only --mm-encoder-tp-mode
--mm-encoder-attn-backend --mm-encoder-attn-dtype --mm-encoder-fp8-scale-path --mm-encoder-fp8-scale-save-path
--mm-encoder-fp8-scale-save-margin --interleave-mm-strings --skip-mm-profiling --video-pruning-rate
--video-pruning-method --mm-tensor-ipc --mm-processor-device --mm-ipc-gpu-memory-gb --mm-device-do-normalize
--enable-lora --max-loras --max-lora-rank --lora-dtype --enable-tower-connector-lora --max-cpu-loras
--fully-sharded-loras --lora-target-modules --default-mm-loras --specialize-active-lora --enable-mixed-moe-lora-format
--enable-moe-shared-loras --max-lora-cls-labels --logging-config --log-level --log-config-file
--show-hidden-metrics-for-version --otlp-traces-endpoint --collect-detailed-traces --per-request-spec-decode-metrics
--kv-cache-metrics --kv-cache-metrics-sample --custom-histogram-buckets --cudagraph-metrics
--enable-layerwise-nvtx-tracing --enable-mfu-metrics --enable-logging-iteration-details --jit-monitor-mode
--jit-monitor-verbose --max-num-batched-tokens --max-num-scheduled-tokens --max-num-seqs --max-num-active-seqs
--max-num-queued-reqs --max-num-queued-tokens --long-prefill-token-threshold --long-prefill-token-threshold-adaptive
--scheduling-policy --enable-chunked-prefill --disable-chunked-mm-input --scheduler-cls --scheduler-reserve-full-isl
--watermark --prefill-schedule-interval --disable-hybrid-kv-cache-manager --async-scheduling --stream-interval
--cudagraph-capture-sizes --max-cudagraph-capture-size --ir-op-priority --enable-flashinfer-autotune --moe-backend
--linear-backend --sparse-indexer-topk-backend --speculative-config -sc --spec-method --spec-model --spec-tokens
--watermark-config --diffusion-config -dc --kv-transfer-config --kv-events-config --ec-transfer-config
--ec-manager-config --compilation-config -cc --attention-config -ac --engram-config --reasoning-config --kernel-config
--additional-config --structured-outputs-config --aux-output-config --profiler-config --optimization-level
--performance-mode --weight-transfer-config --disable-log-stats --aggregate-engine-logging
--fail-on-environ-validation --shutdown-timeout --gdn-prefill-backend --kda-prefill-backend --kda-decode-backend
--enable-log-requests
"""
"""Every flag of `vllm serve` 0.32, without those that only turn another one off."""
OURS = {name for flag in flag_texts(cli.make_app()["serve"]) for name in flag.plain_names} | {"--model"}


def test_each_flag_of_vllm_is_ours_or_has_a_sentence():
    unknown = [flag for flag in VLLM.split() if flag not in OURS and sentence_of(flag) is None]
    assert unknown == [], "say what to use instead in app/commands/vllm_flags.py"


def test_no_flag_of_ours_is_refused():
    assert sorted(OURS & set(SENTENCES)) == [], "take them out of app/commands/vllm_flags.py"


def test_a_sentence_fits_and_names_only_flags_that_there_are():
    switches = {f"--no-{name[2:]}" for name in OURS}
    for sentence in set(SENTENCES.values()):
        named = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", sentence)
        assert set(named) <= OURS | switches, sentence
        assert len(sentence) <= 120, sentence


def test_they_are_found_as_vllm_takes_them():
    words = ["m", "--gpu_memory_utilization=0.9", "--no-trust-remote-code", "--compilation-config.mode=3", "-ngl", "99"]
    assert [one.flag for one in foreign_flags([*words, "--port", "1", "--", "--tokenizer"])] == [
        *("--gpu_memory_utilization", "--no-trust-remote-code", "--compilation-config.mode", "-ngl")
    ]


def test_all_of_them_are_told_at_once_and_nothing_is_started(capsys):
    said = say(capsys, "serve", "Qwen/Qwen3-0.6B", "--gpu-memory-utilization", "0.9", "--trust-remote-code")
    assert said.status == 2
    assert said.err.splitlines() == [
        "trillm: serve has no --gpu-memory-utilization: the KV cache is sized by what is free; "
        "--kv-cache-memory-bytes sets it (8G is 8 GiB)",
        "serve has no --trust-remote-code: no code from outside runs in this server; leave it out",
        f"See `{own_command('serve', '--help')}`.",
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-m", "x.gguf", "-c", "4096"), ["comes after `serve`", "use --max-model-len"]),
        (("-ngl", "99"), ["--device"]),
        (("-hf", "some/model-GGUF"), ["hf download"]),
        (("--collect-detailed-traces", "all"), ["/start_profile"]),
        (("-np", "4"), ["use --max-num-seqs"]),
        (("--model-path", "x", "--tp", "2"), ["comes after `serve`", "use -tp"]),
        (("--mem-fraction-static=0.8", "--context-length", "8192"), ["--kv-cache-memory-bytes", "--max-model-len"]),
    ],
)
def test_flags_of_llama_cpp_and_sglang_are_translated(capsys, words, told):
    said = say(capsys, "serve", *words)
    assert said.status == 2
    for line, part in zip(said.err.splitlines(), told, strict=False):
        assert part in line
    assert len(said.err.splitlines()) == len(told) + 1


def test_other_commands_have_flags_of_their_own(capsys):
    assert "--tokenizer:" not in say(capsys, "version", "--tokenizer", "x").err
