"""How a GGUF file says that its embeddings are pooled, in sentence-transformers' files. Used by gguf_checkpoint."""

from __future__ import annotations

import msgspec

from app.checkpoints.gguf_metadata import GgufFile

MODES = {1: "mean", 2: "cls", 3: "lasttoken"}
"""GGUF's pooling types. 0 is none, which generating models have, and 4 a score of two texts."""
DIRECTORY = "1_Pooling"


def pooling_files(gguf: GgufFile) -> dict[str, bytes]:
    """By name; none for a file that says nothing of it. llama.cpp brings every vector to length 1, and so do we."""
    architecture = gguf.require("general.architecture", str)
    mode = MODES.get(gguf.get(f"{architecture}.pooling_type", int, 0))
    if mode is None:
        return {}
    kinds = {"Transformer": "", "Pooling": DIRECTORY, "Normalize": "2_Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(kinds.items())
    ]
    return {
        "modules.json": msgspec.json.encode(modules),
        f"{DIRECTORY}/config.json": msgspec.json.encode({"pooling_mode": mode}),
    }
