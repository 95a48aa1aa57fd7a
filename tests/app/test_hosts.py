"""What an operator, files and torchrun say of several hosts is read strictly, and comes out the same on all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.hosts import Torchrun, following_host, leading_host
from app.settings import Settings
from protocol.errors import BadRequestError, CheckpointError
from protocol.ids import EngineIndex, Epoch
from protocol.parallel import ParallelSpec
from protocol.spec import EngineSpec, RankSpec

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "LOCAL_WORLD_SIZE": "1",
    "WORLD_SIZE": "4",
    "RANK": "3",
    "MASTER_ADDR": "first",
    "MASTER_PORT": "44444",
}


@pytest.fixture
def key(tmp_path) -> Path:
    path = tmp_path / "key"
    path.write_text("0123456789abcdef" * 4 + "\n")
    return path


def settings(key: Path, **fields: object) -> Settings:
    hosts = {"nnodes": 2, "tensor_parallel_size": 2, "master_addr": "first", "node_key_file": key}
    return Settings(**hosts | fields)


def test_hosts_that_are_given_the_same_key_and_model_know_each_other(checkpoint, key):
    leading = leading_host(settings(key), checkpoint)
    other = following_host(settings(key, node_rank=1), checkpoint)
    assert leading is not None
    assert other.leading_key == leading.curve.public_key
    assert leading.curve.admitted == [other.curve.public_key]
    assert other.curve.admitted == [leading.curve.public_key]
    assert other.curve.public_key != leading.curve.public_key
    assert (other.model, other.endpoint, other.number) == (leading.model, "first:29501", 1)
    assert leading.meeting(EngineIndex(2), Epoch(7)) == "tcp://first:29504/7"


def test_an_address_of_ipv6_stands_in_brackets(checkpoint, key):
    leading = leading_host(settings(key, master_addr="fd00::1"), checkpoint)
    assert leading is not None
    assert leading.endpoint == "[fd00::1]:29501"
    assert leading.meeting(EngineIndex(0), Epoch(1)) == "tcp://[fd00::1]:29502/1"


def test_a_rank_has_its_own_host_s_paths_and_threads(checkpoint, key, tmp_path):
    other = following_host(settings(key, node_rank=1, threads=3, download_dir=tmp_path), checkpoint)
    engine = EngineSpec(EngineIndex(0), Epoch(1), "", {}, "/there", parallel=ParallelSpec(2), weights_seconds=5.0)
    local = other.local(RankSpec(Epoch(1), engine, 1)).engine
    assert (local.checkpoint, local.threads, local.cache_directory) == (str(checkpoint), 3, str(tmp_path))
    assert local.weights_seconds is None
    assert local.parallel == engine.parallel


def test_where_there_is_one_host_there_are_no_others(checkpoint):
    assert leading_host(Settings(), checkpoint) is None


@pytest.mark.parametrize("content", ["short", "x" * 5000])
def test_a_key_that_is_too_short_or_too_long_is_refused(checkpoint, key, content):
    key.write_text(content)
    with pytest.raises(BadRequestError, match=f"has {min(len(content), 4097)} bytes, and must have 32 to 4096"):
        leading_host(settings(key), checkpoint)


def test_files_that_are_not_there_are_named(checkpoint, key, tmp_path):
    with pytest.raises(BadRequestError, match=r"--node-key-file .*none cannot be read: No such file"):
        leading_host(settings(tmp_path / "none"), checkpoint)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        leading_host(settings(key), tmp_path)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"nnodes": 0}, "--nnodes must be from 1 to 64, not 0"),
        ({"nnodes": 65}, "--nnodes must be from 1 to 64, not 65"),
        ({"node_rank": 2}, "--node-rank must be from 0 to 1 (--nnodes), not 2"),
        ({"node_rank": -1}, "--node-rank must be from 0 to 1 (--nnodes), not -1"),
        ({"nnodes": 1, "node_rank": 1}, "--node-rank must be from 0 to 0 (--nnodes), not 1"),
        ({"headless": True}, "--headless is for hosts with a --node-rank above 0"),
        ({"tensor_parallel_size": 3}, "is 3, which --nnodes 2 does not divide"),
        ({"master_addr": ""}, "--nnodes 2 needs a --master-addr"),
        ({"node_key_file": None}, "--nnodes 2 needs a --node-key-file"),
        ({"master_port": 0}, "--master-port must be from 1 to 65534, not 0"),
        ({"master_port": 65535}, "--master-port must be from 1 to 65534, not 65535"),
    ],
)
def test_hosts_that_cannot_be_are_refused_in_a_sentence(key, fields, text):
    with pytest.raises(BadRequestError) as caught:
        settings(key, **fields)
    assert text in caught.value.message


def test_what_torchrun_says_are_the_hosts():
    assert Torchrun.of(TORCHRUN) == Torchrun(4, 3, "first")
    assert Torchrun.of({}) is None
    assert Torchrun.of({"RANK": "1", "WORLD_SIZE": "2"}) is None  # somebody else's


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"LOCAL_WORLD_SIZE": "2"}, "has started 2 processes on this host: give it --nproc-per-node 1"),
        ({"LOCAL_WORLD_SIZE": None}, "has started no processes on this host"),
        ({"RANK": "x"}, "torchrun's environment cannot be read: ValueError"),
        ({"MASTER_ADDR": None}, "torchrun's environment cannot be read: KeyError('MASTER_ADDR')"),
    ],
)
def test_what_torchrun_says_wrongly_is_named(change, text):
    environ = {name: value for name, value in (TORCHRUN | change).items() if value is not None}
    with pytest.raises(BadRequestError) as caught:
        Torchrun.of(environ)
    assert text in caught.value.message
