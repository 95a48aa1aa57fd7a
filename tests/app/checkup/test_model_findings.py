"""A model fits, or there is a word on what would."""

from __future__ import annotations

from app.checkup.finding import Finding, Mark
from app.checkup.listener import Listener
from app.checkup.machine import Place
from app.checkup.model_findings import model_findings
from app.checkup.packages import Packages
from app.settings import Settings
from tests.helpers.machines import CARD, GIB, PLACE, fit, machine, probed


def findings(settings: Settings | None = None, **changes: object) -> dict[str, Finding]:
    told = model_findings(probed(fit=fit(**changes)), settings or Settings(), machine())
    return {finding.name: finding for finding in told}


def test_one_that_fits_is_told_with_how_long_a_context():
    told = findings()
    assert {finding.mark for finding in told.values()} == {Mark.OK}
    assert told["model"].text == "LlamaForCausalLM, 7.6B parameters, by the CPU kernels"
    assert told["weights"].text == "4.0 GiB; 16.0 GiB of memory are free"
    assert told["context"].text == (
        "8192 tokens a request, as many as the model takes; 1.0 GiB hold 1,048,576 tokens of all requests together: "
        "128 of full length at a time"
    )


def test_one_that_does_not_fit_fails_with_what_would():
    told = findings(weights_bytes=20 * GIB)
    assert told["weights"].mark is Mark.FAIL
    assert "4-bit GGUF" in told["weights"].remedy
    assert "context" not in told
    assert "(-tp)" in findings(weights_bytes=20 * GIB, on_card=True)["weights"].remedy


def test_what_another_server_may_have_taken_is_a_warning_unless_all_there_is_would_not_do():
    server = Listener("trillm 1.2.3", is_trillm=True, has_models=True)

    def marks(listener: Listener, **changes: object) -> list[Mark]:
        told = model_findings(probed(fit=fit(**changes), cards=[CARD]), Settings(), machine(), listener)
        return [finding.mark for finding in told]

    assert marks(server, weights_bytes=20 * GIB) == [Mark.OK, Mark.WARN]
    assert marks(server, weights_bytes=30 * GIB) == [Mark.OK, Mark.FAIL]
    assert marks(server, weights_bytes=100 * GIB, on_card=True) == [Mark.OK, Mark.WARN]
    assert marks(server, weights_bytes=150 * GIB, on_card=True) == [Mark.OK, Mark.FAIL]
    assert marks(server, kv_bytes=0, num_tokens=0, max_model_len=0)[-1] is Mark.WARN
    assert marks(Listener("an HTTP server"), weights_bytes=20 * GIB)[-1] is Mark.FAIL
    (_, weights) = model_findings(probed(fit=fit(weights_bytes=20 * GIB)), Settings(), machine(), server)
    assert weights.remedy.startswith("look again when trillm 1.2.3 has ended; or serve a smaller model")


def test_more_for_keys_and_values_than_is_left_is_no_good_advice_to_go_on_with():
    asked = Settings(kv_cache_memory_bytes=13 * GIB)
    on_host, on_card = (findings(asked, kv_bytes=13 * GIB, on_card=where)["context"] for where in (False, True))
    assert (on_host.mark, on_card.mark) == (Mark.WARN, Mark.FAIL)
    assert on_host.text == "keys and values are to have 13.0 GiB, and 12.0 GiB are left beside the weights"
    assert on_host.remedy.startswith("less --kv-cache-memory-bytes")
    several = Settings(data_parallel_size=2, kv_cache_memory_bytes=7 * GIB)
    assert findings(several, kv_bytes=7 * GIB)["context"].mark is Mark.WARN


def test_no_room_for_keys_and_values_is_a_failure():
    assert findings(kv_bytes=0, num_tokens=0, max_model_len=0)["context"].mark is Mark.FAIL


def test_a_context_that_is_cut_is_told_with_what_all_of_it_takes():
    told = findings(max_model_len=4096, num_tokens=4096)["context"]
    assert told.mark is Mark.WARN
    assert "the model's own limit is 8192" in told.text
    assert told.remedy.startswith("all 8192 take 8 MiB: --kv-cache-memory-bytes")
    asked_for = findings(Settings(max_model_len=4096), max_model_len=4096, num_tokens=4096)["context"]
    assert asked_for.mark is Mark.OK
    assert asked_for.text.endswith("one of full length at a time")


def test_a_short_one_is_worth_a_word():
    assert findings(max_model_len=512, limit=512)["context"].mark is Mark.WARN


def test_an_architecture_that_is_not_ours_may_be_transformers_():
    unknown = probed(trouble="FooForCausalLM is not known", is_unknown=True)
    (with_it,) = model_findings(unknown, Settings(), machine())
    (without,) = model_findings(unknown, Settings(), machine(packages=Packages((), 24, ())))
    assert (with_it.mark, without.mark) == (Mark.WARN, Mark.FAIL)
    assert "scripts/install transformers" in without.remedy
    (broken,) = model_findings(probed(trouble="it is broken"), Settings(), machine())
    assert broken.mark is Mark.FAIL


def test_weights_that_are_kept_a_second_time_need_room_on_the_disk():
    small = machine(cache=Place(PLACE.path, "", GIB))
    found = [
        list(model_findings(probed(fit=fit(needs_laying_out=kept)), Settings(), small))[1] for kept in (True, False)
    ]
    assert [finding.mark for finding in found] == [Mark.WARN, Mark.OK]
    assert "has 1.0 GiB" in found[0].text
