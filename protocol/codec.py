"""Encoders and decoders, built once. msgspec checks every field's type while decoding."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from protocol.api import ApiInput, HouseInput
from protocol.hosts import HostOrder, HostReport
from protocol.kv import KvInput, KvOutput
from protocol.messages import AppInput, EngineInput, EngineOutput, OutputInput
from protocol.spec import FromChild, ToChild

T = TypeVar("T")

ENCODER = msgspec.msgpack.Encoder()


class Codec(Generic[T]):
    """Bytes to one union of messages and back.

    Raises msgspec.DecodeError or msgspec.ValidationError (its subclass) for a frame that is not of the union, and
    nothing else, whatever the frame is.
    """

    def __init__(self, union: type[T]) -> None:
        self._decoder = msgspec.msgpack.Decoder(union)

    def encode(self, message: T) -> bytes:
        return ENCODER.encode(message)

    def decode(self, frame: bytes | memoryview) -> T:
        try:
            return self._decoder.decode(frame)
        except (RecursionError, UnicodeDecodeError) as error:
            # No message of ours nests without bound, but a frame may have fields that the decoder only skips.
            raise msgspec.DecodeError(f"{type(error).__name__}: {error}") from error


class KeyedCodec(Codec[T]):
    """Of the links between two processes that share a key: whoever else finds the socket says nothing to them."""

    def __init__(self, codec: Codec[T], key: bytes) -> None:
        """`key`: at the beginning of each frame."""
        self._codec = codec
        self._key = key

    def encode(self, message: T) -> bytes:
        return self._key + self._codec.encode(message)

    def decode(self, frame: bytes | memoryview) -> T:
        if frame[: len(self._key)] != self._key:
            raise msgspec.DecodeError("a frame without the key of this link")
        return self._codec.decode(frame[len(self._key) :])


ENGINE_INPUT: Codec[EngineInput] = Codec(EngineInput)  # type: ignore[arg-type]
ENGINE_OUTPUT: Codec[EngineOutput] = Codec(EngineOutput)  # type: ignore[arg-type]
OUTPUT_INPUT: Codec[OutputInput] = Codec(OutputInput)  # type: ignore[arg-type]
APP_INPUT: Codec[AppInput] = Codec(AppInput)  # type: ignore[arg-type]
API_INPUT: Codec[ApiInput] = Codec(ApiInput)  # type: ignore[arg-type]
HOUSE_INPUT: Codec[HouseInput] = Codec(HouseInput)  # type: ignore[arg-type]
KV_INPUT: Codec[KvInput] = Codec(KvInput)  # type: ignore[arg-type]
KV_OUTPUT: Codec[KvOutput] = Codec(KvOutput)  # type: ignore[arg-type]
HOST_REPORT: Codec[HostReport] = Codec(HostReport)
HOST_ORDER: Codec[HostOrder] = Codec(HostOrder)
FROM_CHILD: Codec[FromChild] = Codec(FromChild)  # type: ignore[arg-type]
TO_CHILD: Codec[ToChild] = Codec(ToChild)  # type: ignore[arg-type]
