"""flashinfer, if it is installed and can be imported here. Used by gpu/cuda_model; the only file that imports it."""

from __future__ import annotations

import logging

from gpu.flashinfer_attention import FlashInfer

logger = logging.getLogger("trillm.load")


def open_flashinfer() -> FlashInfer | None:
    """None if it is not installed, and with a line in the log if it does not import."""
    try:
        from flashinfer import BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper
    except ModuleNotFoundError as error:
        if error.name != "flashinfer":
            logger.warning("attention without flashinfer: %s", error)
        return None
    except (ImportError, OSError, RuntimeError) as error:
        logger.warning("attention without flashinfer: %s", str(error).partition("\n")[0])
        return None
    return FlashInfer(BatchDecodeWithPagedKVCacheWrapper, BatchPrefillWithPagedKVCacheWrapper)
