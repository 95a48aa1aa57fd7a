"""What the size of a model means on this machine. Used by app/commands/check.py; pure."""

from __future__ import annotations

from collections.abc import Iterator

from app.checkup.finding import Finding, Mark, count, size
from app.checkup.listener import Listener
from app.checkup.machine import Machine
from app.settings import Settings
from protocol.machine import ModelFit, Probed

SHORT = 2048
"""Tokens of a context that is hardly of use."""


def model_findings(
    probed: Probed, settings: Settings, machine: Machine, listener: Listener | None = None
) -> Iterator[Finding]:
    """Of a model whose files are whole. A `listener` may have memory that would be free without it."""
    fit = probed.fit
    if fit is None:
        yield _not_ours(probed, machine.packages.extras)
        return
    yield Finding("model", Mark.OK, f"{fit.architecture}, {count(fit.num_parameters)} parameters, by {fit.computed_by}")
    where = "on the GPU" if fit.on_card else "of memory"
    text = f"{size(fit.weights_bytes)}; {size(fit.free_bytes)} {where} are free"
    mark, beside = _in_want_of_memory(probed, fit, machine, listener)
    if fit.weights_bytes >= fit.free_bytes:
        yield Finding("weights", mark, text, beside + _smaller(fit))
        return
    if fit.needs_laying_out and fit.weights_bytes > machine.cache.free_bytes:
        text = f"{text}; the cache, where they are kept as the kernels take them, has {size(machine.cache.free_bytes)}"
        yield Finding("weights", Mark.WARN, text, "make room there: without, every start takes longer")
    else:
        yield Finding("weights", Mark.OK, text)
    if fit.num_tokens == 0:
        remedy = f"{beside}serve a smaller model, or a 4-bit GGUF of it"
        yield Finding("context", mark, "no memory is left for keys and values", remedy)
    else:
        yield _context(fit, settings, mark)


def _in_want_of_memory(probed: Probed, fit: ModelFit, machine: Machine, listener: Listener | None) -> tuple[Mark, str]:
    """What it is that memory does not suffice, and what to try first: a warning where it is another server's that has
    it, and all there is would do."""
    if listener is None or not listener.has_models:
        return Mark.FAIL, ""
    total = max((card.total_bytes for card in probed.cards), default=0) if fit.on_card else machine.total_memory
    if fit.weights_bytes >= total:
        return Mark.FAIL, ""
    return Mark.WARN, f"look again when {listener.name} has ended; or "


def _smaller(fit: ModelFit) -> str:
    if not fit.on_card:
        return "serve a smaller model, or a 4-bit GGUF of it"
    return "serve a smaller model, use --quantization fp8, or cut it over several GPUs (-tp)"


def _context(fit: ModelFit, settings: Settings, unfit: Mark) -> Finding:
    """`unfit` is what it is that memory does not suffice."""
    wanted = settings.max_model_len or fit.limit
    at_once = fit.num_tokens // fit.max_model_len
    own = (
        f"; the model's own limit is {fit.limit}" if fit.limit != fit.max_model_len else ", as many as the model takes"
    )
    room = f"{size(fit.kv_bytes)} hold {fit.num_tokens:,} tokens of all requests together"
    text = f"{fit.max_model_len} tokens a request{own}; {room}"
    left = fit.free_bytes - fit.weights_bytes
    pools = fit.kv_bytes * (1 if fit.on_card else settings.num_engines)
    if pools > left:
        text = f"keys and values are to have {size(pools)}, and {size(left)} are left beside the weights"
        flag = "--kv-cache-memory-bytes" if settings.num_gpu_blocks_override is None else "--num-gpu-blocks-override"
        mark = unfit if fit.on_card else Mark.WARN  # the host's memory is taken as it fills
        return Finding("context", mark, text, f"less {flag}, or none: then as much is taken as is free")
    if fit.max_model_len < wanted:
        needed = size(wanted * fit.kv_bytes_per_token)
        remedy = f"all {wanted} take {needed}: --kv-cache-memory-bytes, --kv-cache-dtype fp8 or fewer --max-model-len"
        return Finding("context", Mark.WARN, text, remedy)
    if fit.max_model_len < SHORT:
        return Finding("context", Mark.WARN, text, "that is short for conversations")
    if at_once < 2:
        remedy = "--kv-cache-memory-bytes gives more"
        return Finding("context", Mark.OK, f"{text}: one of full length at a time", remedy)
    return Finding("context", Mark.OK, f"{text}: {at_once} of full length at a time")


def _not_ours(probed: Probed, extras: tuple[str, ...]) -> Finding:
    if not probed.is_unknown:
        return Finding("model", Mark.FAIL, probed.trouble, "choose another model, or leave out the flag that is named")
    if "transformers" in extras:
        return Finding("model", Mark.WARN, probed.trouble, "transformers' code may compute it, slower: try it")
    remedy = "with `scripts/install transformers`, transformers' code may compute it"
    return Finding("model", Mark.FAIL, probed.trouble, remedy)
