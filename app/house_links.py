"""What actors say to each other, as the house is drawn: from the actors that there are, by the way they are always
connected (ARCHITECTURE.md, section 1). Pure; used by app/house_reader.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.house import HouseActor, HouseLink

PUSH, PUBLISH = "PUSH/PULL", "XPUB/SUB"
MEMORY, GROUP = "shared memory", "process group"


def house_links(actors: Sequence[HouseActor]) -> list[HouseLink]:
    """In the order of a request's way. The app is that of each API server, where there are several."""
    engines = [actor for actor in actors if actor.kind == "engine"]
    servers = [actor.name for actor in actors if actor.kind == "api"]
    outputs = [actor.name for actor in actors if actor.kind == "output"]
    pairs = [(f"api-{name.removeprefix('output-')}" if servers else "app", name) for name in outputs]
    found = [_link("app", server, "ActorsAre", PUSH) for server in servers]
    for app, output in pairs:
        found += _ring(app, output, [engine.name for engine in engines])
    for engine in engines:
        found += _besides(engine, actors)
    return found


def _ring(app: str, output: str, engines: Iterable[str]) -> Iterable[HouseLink]:
    """From the app and back to it."""
    for engine in engines:
        yield _link(app, engine, "EngineCoreRequest", PUSH)
        yield _link(engine, output, "EngineCoreOutputs", PUBLISH)
    yield _link(output, app, "RequestOutputs", PUSH)


def _besides(engine: HouseActor, actors: Iterable[HouseActor]) -> Iterable[HouseLink]:
    """What else an engine has to do with."""
    for actor in actors:
        if actor.kind == "weights":
            yield _link(actor.name, engine.name, "weights", MEMORY)
        elif actor.engine_index != engine.engine_index:
            continue
        elif actor.kind == "rank":
            yield _link(engine.name, actor.name, "StepPlan", GROUP)
        elif actor.kind == "kv":
            yield _link(engine.name, actor.name, "KvFind, KvSaved", PUSH)
            yield _link(actor.name, engine.name, "KvFound, KvRoom", PUSH)


def _link(sender: str, receiver: str, sends: str, socket: str) -> HouseLink:
    return HouseLink(sender=sender, receiver=receiver, sends=sends, socket=socket)
