"""Adapters over HTTP: models like any other, which clients may load and unload where the operator lets them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve

from app.adapter_paths import AdapterPolicy, adapter_of_module, resolved_directories
from app.adapters import MAX_ADAPTERS, MAX_NAME_LENGTH, Adapter, Adapters
from app.engine import LorasInUse
from app.lora_metrics import LoraCollector
from app.lora_modules import LoraModule, read_lora_modules
from app.settings import Settings
from protocol.errors import (
    BadRequestError,
    CheckpointError,
    ConflictError,
    OperationFailedError,
    TrillmError,
    UnavailableError,
)
from protocol.lora import LoraId, LoraRequest
from protocol.lora_files import lora_id_of
from protocol.operations import AddLora, LoraState, RemoveLora
from tests.helpers.adapters import write_adapter
from tests.helpers.app_under_test import MODEL, AppUnderTest, make_app

PIRATE = Adapter(LoraRequest("pirate", LoraId(7), "/adapters/pirate"), 1_750_000_000)
OPEN = AdapterPolicy(is_enabled=True, allows_updates=True, max_loras=2)
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


def an_app(policy: AdapterPolicy = OPEN, **options: object) -> AppUnderTest:
    under_test = make_app(adapter_policy=policy, **options)
    state = LoraState([], [])
    under_test.engine.results = {AddLora: state, RemoveLora: state}
    return under_test


# ---------------------------------------------------------------------- as models


async def test_a_request_that_names_an_adapter_is_computed_with_it_and_told_its_name() -> None:
    under_test = make_app(adapters=[PIRATE])
    told = [
        (await under_test.chat(model="pirate")).json["model"],
        (await under_test.complete(model="pirate")).json["model"],
        (await under_test.complete(model=MODEL)).json["model"],
        (await under_test.complete()).json["model"],
    ]
    assert told == ["pirate", "pirate", MODEL, MODEL]
    assert [prompt.lora for prompt in under_test.engine.prompts] == [PIRATE.lora, PIRATE.lora, None, None]


async def test_every_choice_of_a_request_has_the_adapter() -> None:
    under_test = make_app(adapters=[PIRATE])
    await under_test.complete(["a", "b"], model="pirate", n=2)
    assert [prompt.lora for prompt in under_test.engine.prompts] == [PIRATE.lora] * 4


async def test_adapters_are_listed_as_models_with_their_parent() -> None:
    named = evolve(PIRATE, base_model_name="base", lora=LoraRequest("owner/named", LoraId(8), "/adapters/named"))
    under_test = make_app(adapters=[PIRATE, named])
    models = (await under_test.get("/v1/models")).json["data"]
    assert [(m["id"], m["root"], m["parent"]) for m in models] == [
        (MODEL, MODEL, None),
        ("alias", MODEL, None),
        ("pirate", "/adapters/pirate", MODEL),
        ("owner/named", "/adapters/named", "base"),
    ]
    one = (await under_test.get("/v1/models/owner/named")).json
    assert (one["parent"], one["created"]) == ("base", 1_750_000_000)
    assert (await under_test.get("/v1/models/none")).status_code == 404


async def test_an_unknown_name_is_told_which_there_are() -> None:
    reply = await make_app(adapters=[PIRATE]).complete(model="parrot")
    assert reply.status_code == 404
    assert reply.json["error"]["code"] == "model_not_found"
    assert "pirate" in reply.json["error"]["message"]


# ---------------------------------------------------------------------- loading and unloading


async def test_an_adapter_is_loaded_used_and_unloaded(tmp_path: Path) -> None:
    under_test = an_app()
    path = write_adapter(tmp_path / "one")
    reply = await under_test.post(LOAD, lora_name="pirate", lora_path=str(path))
    assert (reply.status_code, reply.text) == (200, "Success: LoRA adapter 'pirate' added successfully.")
    lora = LoraRequest("pirate", lora_id_of("pirate", path), str(path))
    await under_test.complete(model="pirate")
    assert under_test.engine.prompts[-1].lora == lora
    reply = await under_test.post(UNLOAD, lora_name="pirate")
    assert (reply.status_code, reply.text) == (200, "Success: LoRA adapter 'pirate' removed successfully.")
    assert under_test.engine.operations == [AddLora(lora), RemoveLora(lora.lora_id)]
    assert (await under_test.complete(model="pirate")).status_code == 404
    assert (await under_test.post(UNLOAD, lora_name="pirate")).status_code == 404


async def test_one_that_is_there_is_replaced_only_in_place(tmp_path: Path) -> None:
    under_test = an_app()
    paths = [str(write_adapter(tmp_path / str(seed), seed=seed)) for seed in (1, 2)]
    assert (await under_test.post(LOAD, lora_name="pirate", lora_path=paths[0])).status_code == 200
    reply = await under_test.post(LOAD, lora_name="pirate", lora_path=paths[1])
    assert reply.status_code == 400
    assert "has already been loaded" in reply.json["error"]["message"]
    assert (await under_test.post(LOAD, lora_name="pirate", lora_path=paths[1], load_inplace=True)).status_code == 200
    first, second = (lora_id_of("pirate", Path(path)) for path in paths)
    assert first != second
    assert under_test.engine.operations[-1] == RemoveLora(first)
    await under_test.complete(model="pirate")
    assert under_test.engine.prompts[-1].lora.lora_id == second


async def test_the_same_content_loaded_again_in_place_stays(tmp_path: Path) -> None:
    under_test = an_app()
    path = str(write_adapter(tmp_path / "one"))
    for _ in range(2):
        reply = await under_test.post(LOAD, lora_name="pirate", lora_path=path, load_inplace=True)
        assert reply.status_code == 200
    assert not any(isinstance(operation, RemoveLora) for operation in under_test.engine.operations)


async def test_another_id_than_the_adapters_unloads_nothing() -> None:
    under_test = an_app(adapters=[PIRATE])
    assert (await under_test.post(UNLOAD, lora_name="pirate", lora_int_id=8)).status_code == 404
    assert (await under_test.post(UNLOAD, lora_name="pirate", lora_int_id=7)).status_code == 200


async def test_unloading_works_while_the_engine_is_down() -> None:
    under_test = an_app(adapters=[PIRATE])
    under_test.engine.results = {RemoveLora: UnavailableError("down")}
    assert (await under_test.post(UNLOAD, lora_name="pirate")).status_code == 200
    assert (await under_test.complete(model="pirate")).status_code == 404


@pytest.mark.parametrize(
    ("error", "status"),
    [(OperationFailedError("rank 99"), 400), (UnavailableError("down"), 503), (ConflictError("no memory"), 409)],
)
async def test_what_the_engines_do_not_take_is_not_served(tmp_path: Path, error: TrillmError, status: int) -> None:
    under_test = an_app()
    under_test.engine.results = {AddLora: error}
    reply = await under_test.post(LOAD, lora_name="pirate", lora_path=str(write_adapter(tmp_path / "one")))
    assert reply.status_code == status
    assert error.message in reply.json["error"]["message"]
    assert (await under_test.complete(model="pirate")).status_code == 404


@pytest.mark.parametrize(
    ("policy", "flag"),
    [
        (AdapterPolicy(), "--enable-lora"),
        (AdapterPolicy(allows_updates=True), "--enable-lora"),
        (AdapterPolicy(is_enabled=True), "--allow-runtime-lora-updating"),
    ],
)
@pytest.mark.parametrize("path", [LOAD, UNLOAD])
async def test_without_its_flags_there_is_no_such_route(policy: AdapterPolicy, flag: str, path: str) -> None:
    reply = await an_app(policy).post(path, lora_name="pirate", lora_path="/x")
    assert reply.status_code == 404
    assert reply.json["error"]["message"].endswith(flag)


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_LENGTH + 1), "a\nb", MODEL, "alias"])
async def test_names_that_no_adapter_may_have_are_refused(tmp_path: Path, name: str) -> None:
    reply = await an_app().post(LOAD, lora_name=name, lora_path=str(write_adapter(tmp_path / "one")))
    assert reply.status_code == 400
    assert reply.json["error"]["param"] == "lora_name"


def test_there_is_a_most_of_adapters() -> None:
    many = Adapters(evolve(PIRATE, lora=LoraRequest(f"p{i}", LoraId(i + 1), "/p")) for i in range(MAX_ADAPTERS))
    many.check_new("p5", (), replaces=True)
    with pytest.raises(BadRequestError, match="1024 adapters are loaded"):
        many.check_new("new", (), replaces=True)


# ---------------------------------------------------------------------- what a client learns of the files


@pytest.mark.parametrize("path", ["relative/adapter", "/nul\0", "/" + "x" * 5000, ""])
async def test_a_path_has_to_be_absolute_and_of_a_bounded_length(path: str) -> None:
    reply = await an_app().post(LOAD, lora_name="pirate", lora_path=path)
    assert reply.status_code == 400
    assert reply.json["error"]["param"] == "lora_path"


async def test_what_lies_outside_the_allowed_directories_cannot_be_told_from_what_is_not_there(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", write_adapter(tmp_path / "other")
    inside = write_adapter(allowed / "inside")
    (allowed / "link").symlink_to(other)
    (allowed / "circle").symlink_to(allowed / "circle")
    under_test = an_app(evolve(OPEN, directories=resolved_directories([allowed])))
    outside = [
        other,
        tmp_path / "missing",
        allowed / "link",
        allowed / ".." / "other",
        allowed / "circle",
        "/etc/passwd",
    ]
    replies = [await under_test.post(LOAD, lora_name="pirate", lora_path=str(path)) for path in outside]
    assert {reply.status_code for reply in replies} == {404}
    assert len({reply.text for reply in replies}) == 1
    assert (await under_test.post(LOAD, lora_name="pirate", lora_path=str(inside))).status_code == 200


def test_a_pipe_is_not_waited_for_and_missing_files_are_named(tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "one")
    (path / "adapter_model.safetensors").unlink()
    with pytest.raises(BadRequestError, match=r"no adapter_model\.safetensors"):
        OPEN.find("pirate", str(path))
    os.mkfifo(path / "adapter_model.safetensors")
    with pytest.raises(BadRequestError, match=r"adapter_model\.safetensors is no file"):
        OPEN.find("pirate", str(path))
    os.truncate(path / "adapter_config.json", 2**21)
    with pytest.raises(BadRequestError, match=r"adapter_config\.json has 2097152 bytes"):
        OPEN.find("pirate", str(path))


def test_the_id_is_of_the_name_and_the_content_alone(tmp_path: Path) -> None:
    one, copy, other = (write_adapter(tmp_path / str(i), seed=seed) for i, seed in enumerate((1, 1, 2)))
    ids = [lora_id_of("a", one), lora_id_of("a", copy), lora_id_of("b", one), lora_id_of("a", other)]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert all(0 < lora_id < 2**63 for lora_id in ids)


# ---------------------------------------------------------------------- what the operator says


def test_modules_are_pairs_or_json() -> None:
    assert read_lora_modules(["a=/x/y=z", '{"name": "b", "path": "/b", "base_model_name": "c"}']) == [
        LoraModule("a", "/x/y=z"),
        LoraModule("b", "/b", "c"),
    ]


@pytest.mark.parametrize(
    ("texts", "complaint"),
    [
        (["a"], "name=path"),
        (["=x"], "name=path"),
        (["{}"], "missing required field"),
        (['{"name": "a", "path": "b", "c": 1}'], "unknown field"),
        (["a=1", "a=2"], "names a twice"),
        (["\n=1"], "printable"),
    ],
)
def test_other_modules_are_refused(texts: list[str], complaint: str) -> None:
    with pytest.raises(BadRequestError, match=complaint):
        Settings(lora_modules=tuple(texts))


def test_an_operators_adapter_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--lora-modules a: owner/repo is no directory"):
        adapter_of_module(LoraModule("a", "owner/repo"))
    with pytest.raises(CheckpointError, match=r"--lora-modules a: .* no adapter_config\.json"):
        adapter_of_module(LoraModule("a", str(tmp_path)))


def test_modules_imply_lora_and_the_engines_get_the_sizes(tmp_path: Path) -> None:
    def sizes(settings: Settings) -> tuple[int, int]:
        engine = settings.house(tmp_path).engine
        return engine.max_loras, engine.max_lora_rank

    assert sizes(Settings(max_loras=3)) == (0, 16)
    assert sizes(Settings(enable_lora=True)) == (4, 16)
    assert sizes(Settings(lora_modules=("a=/x",), max_loras=3, max_lora_rank=64)) == (3, 64)
    for wrong in ({"max_loras": 0}, {"max_lora_rank": 0}, {"max_lora_rank": 513}, {"max_cpu_loras": 3}):
        with pytest.raises(BadRequestError, match=r"--max-(cpu-)?lora"):
            Settings(**wrong)
    with pytest.raises(BadRequestError, match="--allowed-lora-dirs"):
        Settings(allowed_lora_dirs=(tmp_path / "none",))


async def test_the_metric_names_the_adapters_in_use() -> None:
    under_test = make_app()
    under_test.engine.loras_in_use = LorasInUse(("a", "b"), ("c",))
    under_test.services.metrics.add(LoraCollector(under_test.engine, 4, lambda: 12.0))
    text = (await under_test.get("/metrics")).text
    labels = 'max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"'
    assert f"vllm:lora_requests_info{{{labels}}} 12.0" in text
