"""Who waits for room, beside other API servers of the same engines."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from app.room import Room


async def test_of_those_who_wait_no_more_look_again_than_others_have_left_room_for():
    others, asked = 3, 0

    def num_of_others() -> int:
        nonlocal asked
        asked += 1
        return others

    live: list[str] = []
    room = Room(live, 3, num_of_others)

    async def come_in() -> None:
        await room.wait(1)
        live.append("one more")

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(come_in)
        await wait_all_tasks_blocked()
        others, asked = 1, 0
        room.look_again()
        await wait_all_tasks_blocked()
        assert (len(live), room.num_waiting, asked) == (2, 3, 3)
        others = 0
        room.look_again()
        await wait_all_tasks_blocked()
        assert (len(live), room.num_waiting) == (3, 2)
        nursery.cancel_scope.cancel()
