"""Each process of each engine has a GPU of its own, whatever can be seen. The GPUs are only counted here."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from gpu.cards import VISIBLE, cards_of, take_card
from protocol.errors import StartError
from protocol.ids import EngineIndex, Epoch
from protocol.parallel import ParallelSpec
from protocol.spec import EngineSpec

ONE = ParallelSpec()


def spec(engine: int, engines: int, parallel: ParallelSpec = ONE, device: str = "auto") -> EngineSpec:
    return EngineSpec(EngineIndex(engine), Epoch(1), "", {}, "", num_engines=engines, parallel=parallel, device=device)


def counting(environ: dict[str, str], there: int) -> Callable[[], int]:
    """As torch counts the GPUs of a host with so many: by what can be seen, up to the first that is not there."""

    def count() -> int:
        if VISIBLE not in environ:
            return there
        seen = 0
        for name in environ[VISIBLE].split(","):
            if not name.strip().isdecimal() or int(name) >= there:
                break
            seen += 1
        return seen

    return count


@pytest.mark.parametrize("visible", [None, "5,3,7,0,1,2,4,6", "GPU-a, GPU-b,GPU-c,GPU-d,GPU-e,GPU-f"])
@pytest.mark.parametrize(("engines", "ranks"), [(1, 1), (3, 2), (2, 3), (1, 6), (6, 1)])
def test_no_two_processes_have_the_same_gpu_and_engines_see_only_their_own(engines, ranks, visible):
    found = 8 if visible is None else len(visible.split(","))
    seen = {
        (engine, rank): cards_of(engine, rank, engines, ranks, found, visible)
        for engine in range(engines)
        for rank in range(ranks)
    }
    assert len({cards[0] for cards in seen.values()}) == engines * ranks
    of_engines = [{frozenset(seen[engine, rank]) for rank in range(ranks)} for engine in range(engines)]
    assert all(len(one) == 1 for one in of_engines)  # the ranks of one see the same ones
    assert len(frozenset().union(*(next(iter(one)) for one in of_engines))) == engines * ranks
    if visible is not None:
        assert {card for cards in seen.values() for card in cards} <= {name.strip() for name in visible.split(",")}


def test_the_operators_order_is_kept():
    assert cards_of(1, 0, 2, 2, 4, "7,5,3,1") == ["3", "1"]
    assert cards_of(1, 1, 2, 2, 4, "7,5,3,1") == ["1", "3"]
    assert cards_of(1, 1, 2, 2, 8, None) == ["3", "2"]


def test_too_few_gpus_are_refused_with_the_numbers():
    with pytest.raises(StartError, match=r"2 × 2 processes need 4 GPUs, one each, and torch sees 3: lower --data-"):
        cards_of(0, 0, 2, 2, 3, None)
    with pytest.raises(StartError, match=r"need 2 GPUs, one each, and torch sees 1, as CUDA_VISIBLE_DEVICES=3 has it"):
        cards_of(0, 0, 2, 1, 1, "3")


def test_a_process_sees_its_own_gpu_first():
    environ: dict[str, str] = {}
    take_card(spec(1, 2, ParallelSpec(tensor=2)), 1, environ, counting(environ, 4))
    assert environ == {VISIBLE: "3,2"}
    environ = {VISIBLE: "6,5,4"}
    take_card(spec(2, 3), 0, environ, counting(environ, 8))
    assert environ == {VISIBLE: "4"}


def test_on_several_hosts_each_has_gpus_for_its_own_ranks():
    for rank, seen in enumerate(("0,1", "1,0", "0,1", "1,0")):  # the first two on the first host
        environ: dict[str, str] = {}
        asked = msgspec.structs.replace(spec(0, 1, ParallelSpec(tensor=4)), num_hosts=2)
        take_card(asked, rank, environ, counting(environ, 2))
        assert environ == {VISIBLE: seen}


def test_what_the_operator_names_and_is_not_there_is_not_counted():
    environ = {VISIBLE: "0,9"}
    with pytest.raises(StartError, match="need 2 GPUs, one each, and torch sees 1, as CUDA_VISIBLE_DEVICES=0,9"):
        take_card(spec(0, 2), 0, environ, counting(environ, 8))


@pytest.mark.parametrize("asked", [spec(0, 1), spec(1, 2, device="cpu")])
def test_one_process_and_cpus_are_left_alone(asked):
    environ: dict[str, str] = {}
    take_card(asked, 0, environ, counting(environ, 8))
    assert environ == {}


def test_without_gpus_the_cpus_compute():
    environ: dict[str, str] = {}
    take_card(spec(1, 2), 0, environ, counting(environ, 0))
    assert environ == {}


def test_cuda_that_has_started_is_refused():
    with pytest.raises(StartError, match="CUDA_VISIBLE_DEVICES=1 was set, and torch sees 2 GPUs: CUDA had started"):
        take_card(spec(1, 2), 0, {}, lambda: 2)
