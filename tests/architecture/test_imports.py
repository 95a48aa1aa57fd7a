"""Who may import whom: the table of ARCHITECTURE.md, walked over every file."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "gpu", "actors", "app")
PURE = {
    "actors.engine": {
        *("block_hashes", "blocks", "chunk_budget", "deadlines", "draft", "finish", "ngrams", "proposer", "finished"),
        *("adapter_places", "admission", "engine_counters", "grammar", "hold", "repetition"),
        *("kv_exports", "kv_finds", "kv_saves", "kv_side"),
        *("progress", "residents", "scheduler", "scheduler_config", "sequence", "shares", "step_counts", "waiting"),
    },
    "actors.kv": {
        *("complaints", "connector", "counters", "disk_index", "disk_records", "find", "finds", "frames", "leases"),
        *("lending", "sources", "window"),
    },
    "actors.output": {
        *("decoding_rule", "detokenizer", "logprobs", "processor", "request_state"),
        *("stopping", "vocabulary", "windowed_detokenizer"),
    },
}
GPU_USERS = {
    "actors.engine.adapter_loader",
    "actors.engine.stepper",
    "actors.engine.operations",
    "actors.engine.main",
    "actors.engine.weights_offer",
    "actors.rank.main",
    "actors.standing_by",
    "actors.weights.main",
}


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }


def imports_of(path: Path) -> set[str]:
    """Every module that the file imports, also inside functions and under TYPE_CHECKING."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module)
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & MODULES.keys()  # as in `from protocol import links`
    return found


MODULES = modules()


def test_a_module_that_is_imported_as_a_name_counts(tmp_path):
    source = tmp_path / "x.py"
    source.write_text("from protocol import links\nfrom app import cli as c\n")

    assert {"protocol.links", "app.cli"} <= imports_of(source)


def is_pure(module: str) -> bool:
    package, _, name = module.rpartition(".")
    return name in PURE.get(package, ())


def allowed(module: str, imported: str) -> bool:
    top, other = module.split(".")[0], imported.split(".")[0]
    match other:
        case "zmq":
            return module == "protocol.links"
        case "torch":
            return top == "gpu"
        case "trio" | "trio_typing":
            return (top in ("app", "actors") and not is_pure(module)) or module == "protocol.links"
        case "asyncio" | "pickle":
            return False
        case "multiprocessing":
            return module == "app.hypercorn_command"  # only to know whether hypercorn's master started us
        case "app":
            return top == "app"
        case "actors":
            if top == "app":
                return imported == "actors.handles"
            return top == "actors" and (not is_pure(module) or is_pure(imported))
        case "gpu":
            return top == "gpu" or module in GPU_USERS
        case "protocol":
            if top == "gpu" or is_pure(module):
                return imported != "protocol.links"
            return True
        case _:
            return True


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_the_table_allows(module):
    forbidden = {name for name in imports_of(MODULES[module]) if not allowed(module, name)}

    assert forbidden == set()


@pytest.mark.parametrize("package", PURE)
def test_the_pure_modules_named_here_exist(package):
    assert {name for name in PURE[package] if f"{package}.{name}" not in MODULES} == set()


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import app.hypercorn_command, app.cli, app.factory",
            ("torch", "transformers", "gguf", "huggingface_hub", "mcp", "openai_harmony"),
        ),
        (
            "import app.launch",  # what the actors need not wait for is imported beside their start
            ("app.serving", "app.service", "quart", "jinja2", "prometheus_client", "torch"),
        ),
        ("import actors.kv.main", ("torch", "transformers", "numpy", "quart", "hypercorn", "tokenizers")),
        ("import actors.child, actors.output.main", ("torch", "transformers", "numpy", "quart", "hypercorn")),
        ("import actors.engine.main, gpu.fake_runner", ("torch", "transformers", "numpy", "quart", "hypercorn")),
    ],
    ids=["server", "server before it starts actors", "KV connector", "output handler", "engine before it loads"],
)
def test_a_process_loads_no_more_than_it_needs(statement, absent):
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")

    assert set(absent) & set(loaded.stdout.split()) == set()
