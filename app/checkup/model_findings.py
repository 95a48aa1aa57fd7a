"""What the size of a model means on this machine. Used by app/commands/check.py; pure."""

from __future__ import annotations

from collections.abc import Iterator

from app.checkup.finding import Finding, Mark, count, size
from app.checkup.machine import Machine
from app.settings import Settings
from protocol.machine import ModelFit, Probed

SHORT = 2048
"""Tokens of a context that is hardly of use."""


def model_findings(probed: Probed, settings: Settings, machine: Machine) -> Iterator[Finding]:
    """Of a model whose files are whole."""
    fit = probed.fit
    if fit is None:
        yield _not_ours(probed, machine.packages.extras)
        return
    yield Finding("model", Mark.OK, f"{fit.architecture}, {count(fit.num_parameters)} parameters, by {fit.computed_by}")
    where = "on the GPU" if fit.on_card else "of memory"
    text = f"{size(fit.weights_bytes)}; {size(fit.free_bytes)} {where} are free"
    if fit.weights_bytes >= fit.free_bytes:
        yield Finding("weights", Mark.FAIL, text, _smaller(fit))
        return
    if fit.needs_laying_out and fit.weights_bytes > machine.cache.free_bytes:
        text = f"{text}; the cache, where they are kept as the kernels take them, has {size(machine.cache.free_bytes)}"
        yield Finding("weights", Mark.WARN, text, "make room there: without, every start takes longer")
    else:
        yield Finding("weights", Mark.OK, text)
    yield _context(fit, settings)


def _smaller(fit: ModelFit) -> str:
    if not fit.on_card:
        return "serve a smaller model, or a 4-bit GGUF of it"
    return "serve a smaller model, use --quantization fp8, or cut it over several GPUs (-tp)"


def _context(fit: ModelFit, settings: Settings) -> Finding:
    wanted = settings.max_model_len or fit.limit
    if fit.num_tokens == 0:
        remedy = "serve a smaller model, or a 4-bit GGUF of it"
        return Finding("context", Mark.FAIL, "no memory is left for keys and values", remedy)
    at_once = fit.num_tokens // fit.max_model_len
    own = (
        f"; the model's own limit is {fit.limit}" if fit.limit != fit.max_model_len else ", as many as the model takes"
    )
    text = f"{fit.max_model_len} tokens a request{own}; {size(fit.kv_bytes)} hold {fit.num_tokens} of all requests"
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
    return Finding("model", Mark.FAIL, probed.trouble, "pip install 'trillm[transformers]' may compute it")
