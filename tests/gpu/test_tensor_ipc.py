"""Tensors between processes: the same bytes, nothing copied, nothing writable, and no handle believed blindly."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from gpu.layers.packed_weight import PackedWeight, pack, packed_bytes
from gpu.tensor_ipc import DTYPES, TensorIpcReceiver, TensorIpcSender
from protocol.errors import StartError
from protocol.tensors import CudaTensor, FileTensor, PackedTensor, TensorHandle


@pytest.fixture
def sender() -> Iterator[TensorIpcSender]:
    sender = TensorIpcSender("test")
    yield sender
    sender.close()


def over_the_wire(handle: TensorHandle) -> TensorHandle:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(handle), type=TensorHandle)


def rights(address: int) -> str:
    """Of the mapping that this address lies in, as /proc/self/maps has them."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end, found = re.match(r"(\w+)-(\w+) (\S+)", line).groups()
        if int(start, 16) <= address < int(end, 16):
            return found
    raise AssertionError(f"{address:x} is mapped nowhere")


@pytest.mark.parametrize("name", DTYPES)
def test_a_tensor_of_each_type_arrives_with_its_bits(sender, name):
    sent = torch.arange(35).view(5, 7).to(DTYPES[name])
    received = TensorIpcReceiver().open(over_the_wire(sender.share(sent)))
    assert received.dtype == sent.dtype
    assert torch.equal(received, sent)


def test_what_is_no_stretch_of_memory_arrives_as_one(sender):
    sent = torch.arange(35.0).view(5, 7).t()
    received = TensorIpcReceiver().open(sender.share(sent))
    assert torch.equal(received, sent)
    assert received.is_contiguous()


def test_several_tensors_and_bytes_are_told_apart_and_counted(sender):
    tensors = [torch.full((size,), size) for size in (1, 5000, 3)]
    handles = [sender.share(tensor) for tensor in tensors]
    note = sender.share_bytes(b"a note")
    sender.seal()
    receiver = TensorIpcReceiver()
    for tensor, handle in zip(tensors, handles, strict=True):
        assert torch.equal(receiver.open(handle), tensor)
    assert receiver.read_bytes(note) == b"a note"
    assert sender.num_bytes == sum(tensor.nbytes for tensor in tensors) + 6


def test_receivers_map_the_same_pages_and_only_for_reading(sender):
    handle = sender.share(torch.arange(5000.0))
    one, other = (TensorIpcReceiver().open(handle) for _ in range(2))
    assert one.data_ptr() != other.data_ptr()
    for tensor in (one, other):
        assert rights(tensor.data_ptr()) == "r--s"
        assert tensor.data_ptr() % 4096 == 0


def test_what_was_received_outlives_sender_and_receiver():
    sender, receiver = TensorIpcSender("test"), TensorIpcReceiver()
    packed = pack(torch.randn(32, 16))
    plain, same = receiver.open(sender.share(torch.arange(9.0))), receiver.open(sender.share(packed))
    sender.close()
    del receiver
    assert torch.equal(plain, torch.arange(9.0))
    assert (packed_bytes(same) == packed_bytes(packed)).all()


def test_nobody_writes_to_what_is_sealed(sender):
    handle = sender.share(torch.zeros(9))
    sender.seal()
    with pytest.raises(OSError, match="not permitted"):
        sender.share(torch.zeros(9))
    with pytest.raises(OSError, match="not permitted"), Path(handle.path).open("r+b", buffering=0) as file:
        file.write(b"x")


@pytest.mark.parametrize("shape", [(960, 576), (17, 33), (320, 48)])
def test_a_packed_weight_computes_the_same_to_the_last_bit(sender, shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    packed = pack(weight)
    handle = over_the_wire(sender.share(packed))
    assert isinstance(handle, PackedTensor)
    received = TensorIpcReceiver().open(handle)
    assert isinstance(received, PackedWeight)
    assert rights(torch.ops.mkldnn.data_ptr(received.tensor)) == "r--s"
    for rows in (2, 7, 64):
        x = torch.randn(rows, shape[1])
        there, here = (
            torch.ops.mkldnn._linear_pointwise(x, one.tensor, None, "none", [], "") for one in (packed, received)
        )
        assert torch.equal(there, here)


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"offset": 4096}, "which has 4096"), ({"shape": [5000]}, "which has 4096"), ({"offset": -4}, "at -4")],
)
def test_a_handle_beyond_the_file_is_refused(sender, changes, text):
    handle = msgspec.structs.replace(sender.share(torch.zeros(9)), **changes)
    with pytest.raises(ValueError, match=text):
        TensorIpcReceiver().open(handle)


def test_a_type_that_is_not_known_is_refused_by_name(sender):
    handle = msgspec.structs.replace(sender.share(torch.zeros(9)), dtype="__class__")
    with pytest.raises(ValueError, match="'__class__' is none of float32"):
        TensorIpcReceiver().open(handle)


def test_a_maker_that_is_gone_is_an_os_error():
    with pytest.raises(OSError, match="No such file"):
        TensorIpcReceiver().open(FileTensor("/proc/4194999/fd/3", 0, [1], "float32"))


# ---------------------------------------------------------------------- CUDA, with a stand-in for the driver


class StandInCuda:
    """Two processes' views of the same cards, in another order, and memory under handles."""

    def __init__(self, uuids: list[str], memory: dict[bytes, torch.UntypedStorage]) -> None:
        self.uuids = uuids
        self.memory = memory
        self.opened: list[tuple] = []

    def export(self, storage):
        handle = b"handle %d" % len(self.memory)
        self.memory[handle] = storage
        return (1, handle, storage.nbytes(), 512, b"counter", 3, b"event", True)

    def open(self, index, exported):
        self.opened.append((index, exported))
        return self.memory[exported[1]]

    def uuid(self, index):
        return self.uuids[index]

    def index(self, uuid):
        if uuid not in self.uuids:
            raise StartError(f"this process does not see the GPU {uuid}")
        return self.uuids.index(uuid)


class OnCuda(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    @property
    def device(self):
        return torch.device("cuda", 1)


def test_a_cuda_tensor_travels_as_what_torch_needs_to_open_it():
    memory: dict[bytes, torch.UntypedStorage] = {}
    sender = TensorIpcSender("test", StandInCuda(["GPU-a", "GPU-b"], memory))
    sent = torch.arange(24.0).view(4, 6)[1:, ::2].as_subclass(OnCuda)
    handle = over_the_wire(sender.share(sent))
    assert isinstance(handle, CudaTensor)
    assert (handle.device_index, handle.device_uuid) == (1, "GPU-b")
    assert (handle.shape, handle.stride, handle.storage_offset) == ([3, 3], [6, 2], 6)
    assert sender.num_bytes == 3 * 3 * 4

    cuda = StandInCuda(["GPU-b"], memory)  # CUDA_VISIBLE_DEVICES shows it one card only
    received = TensorIpcReceiver(cuda).open(handle)
    assert cuda.opened == [(0, (0, b"handle 0", 96, 512, b"counter", 3, b"event", True))]
    assert torch.equal(received, torch.arange(24.0).view(4, 6)[1:, ::2])
    assert received.untyped_storage().data_ptr() == sent.untyped_storage().data_ptr()
    sender.close()


def test_a_card_that_is_not_seen_is_refused_by_name():
    sender = TensorIpcSender("test", StandInCuda(["GPU-a", "GPU-b"], {}))
    handle = sender.share(torch.zeros(3).as_subclass(OnCuda))
    with pytest.raises(StartError, match="GPU-b"):
        TensorIpcReceiver(StandInCuda(["GPU-a"], {})).open(handle)
    sender.close()


def test_the_fields_of_a_cuda_handle_are_the_arguments_of_torchs_own_rebuilding():
    given = set(inspect.signature(rebuild_cuda_tensor).parameters)
    ours = {
        "tensor_size": "shape",
        "tensor_stride": "stride",
        "tensor_offset": "storage_offset",
        "storage_device": "device_index",
    }
    implied = {"tensor_cls", "storage_cls", "requires_grad"}
    assert {ours.get(name, name) for name in given - implied} == {
        field for field in CudaTensor.__struct_fields__ if field != "device_uuid"
    }
