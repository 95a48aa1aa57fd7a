"""What waits goes by a clock that nobody sets: the wall clock is told to people, and decides nothing."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.test_imports import MODULES

READS_THE_WALL_CLOCK = {
    "app.checkup.machine": "whether it is set at all: certificates are judged by it",
    "app.commands.bench": "the date in results and in their file's name",
    "app.services": "the `created` fields, and when the server started",
    "app.api_servers": "when the server started",
    "app.responses.store": "how old stored responses are, over restarts",
    "app.template_environment": "strftime_now, which chat templates call",
    "actors.engine.operations": "the names of profiles",
    "app.tracing.otel": "when spans began, for their collector",
    "actors.kv.ticket": "until when a ticket is worth trying on another host; the lease goes by its owner's clock",
}
OF_TIME = {"time", "time_ns", "localtime", "gmtime", "ctime"}
OF_DATETIME = {"now", "utcnow", "today"}


def reads(module: str) -> list[int]:
    """The lines in which it reads the wall clock, or names a function that does."""
    found = []
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr=name) if name in OF_TIME:
                found.append(node.lineno)
            case ast.Attribute(value=ast.Name(id="datetime" | "date"), attr=name) if name in OF_DATETIME:
                found.append(node.lineno)
            case ast.ImportFrom(module="time", names=names) if OF_TIME & {alias.name for alias in names}:
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("module", list(MODULES))
def test_the_wall_clock_is_read_where_people_are_told_the_time_and_nowhere_else(module: str) -> None:
    assert bool(reads(module)) == (module in READS_THE_WALL_CLOCK), reads(module)
