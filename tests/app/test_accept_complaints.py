"""Out of descriptors, the log stays readable."""

from __future__ import annotations

import errno
import logging

import pytest
import trio
import trio.testing

from app.accept_complaints import LOGGER, OneLineASecond


class Full(trio.abc.Listener[trio.abc.Stream]):
    """Refuses a number of times, then for good."""

    def __init__(self, times: int) -> None:
        self.left = times

    async def accept(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        self.left -= 1
        raise OSError(errno.EMFILE if self.left >= 0 else errno.EBADF, "no")

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_trio_s_complaints_are_one_line_without_a_traceback(
    caplog: pytest.LogCaptureFixture, autojump_clock: trio.testing.MockClock
) -> None:
    logger, only = logging.getLogger(LOGGER), OneLineASecond()
    logger.addFilter(only)
    try:
        with pytest.RaisesGroup(OSError):
            await trio.serve_listeners(trio.aclose_forcefully, [Full(50)])
    finally:
        logger.removeFilter(only)

    assert 1 <= len(caplog.records) <= 2  # the records' time is real, and 50 tries take less than a second of it
    assert "accept returned EMFILE" in caplog.text
    assert "Traceback" not in caplog.text


def test_after_a_second_there_is_another_line() -> None:
    only = OneLineASecond()
    told = []
    for created in (10.0, 10.1, 10.9, 11.0, 11.1, 12.5):
        record = logging.makeLogRecord({"created": created})
        if only.filter(record):
            told.append(created)
    assert told == [10.0, 11.0, 12.5]


def test_a_clock_that_is_set_back_silences_nobody() -> None:
    only = OneLineASecond()
    created = [5000.0, 5000.5, 100.0, 100.5, 101.5]
    records = [logging.makeLogRecord({"created": moment}) for moment in created]
    assert [record.created for record in records if only.filter(record)] == [5000.0, 100.0, 101.5]
