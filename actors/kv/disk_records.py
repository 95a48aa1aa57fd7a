"""How it is written down what a slot of the disk's file has. Used by actors/kv/disk_file."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from actors.kv.disk_index import SlotRecord
from protocol.kv import BlockHash

RECORD = struct.Struct("<32sQQI")
"""Hash, the slot itself, stamp, checksum of hash and block."""
RECORD_CRC = struct.Struct("<I")
RECORD_BYTES = 64
ERASED = bytes(RECORD_BYTES)
HASH_BYTES = 32


def checksum(block_hash: BlockHash, block: memoryview) -> int:
    """Of its name too, so that no other block's bytes pass."""
    return zlib.crc32(block, zlib.crc32(block_hash))


def packed(record: SlotRecord) -> bytes:
    body = RECORD.pack(record.block_hash, record.slot, record.stamp, record.checksum)
    return (body + RECORD_CRC.pack(zlib.crc32(body))).ljust(RECORD_BYTES, b"\0")


def sound_records(data: memoryview, num_slots: int) -> Iterator[SlotRecord]:
    """Those of an index file that were written by us, whole, and of which the block may be there."""
    for slot in range(min(num_slots, len(data) // RECORD_BYTES)):
        start = slot * RECORD_BYTES
        block_hash, its_slot, stamp, crc = RECORD.unpack_from(data, start)
        (own,) = RECORD_CRC.unpack_from(data, start + RECORD.size)
        if its_slot == slot and stamp and own == zlib.crc32(data[start : start + RECORD.size]):
            yield SlotRecord(slot, BlockHash(block_hash), crc, stamp)
