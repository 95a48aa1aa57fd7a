"""A model fits, or there is a word on what would."""

from __future__ import annotations

from app.checkup.finding import Finding, Mark
from app.checkup.machine import Place
from app.checkup.model_findings import model_findings
from app.checkup.packages import Packages
from app.settings import Settings
from tests.helpers.machines import GIB, PLACE, fit, machine, probed


def findings(settings: Settings | None = None, **changes: object) -> dict[str, Finding]:
    told = model_findings(probed(fit=fit(**changes)), settings or Settings(), machine())
    return {finding.name: finding for finding in told}


def test_one_that_fits_is_told_with_how_long_a_context():
    told = findings()
    assert {finding.mark for finding in told.values()} == {Mark.OK}
    assert told["model"].text == "LlamaForCausalLM, 7.6B parameters, by the CPU kernels"
    assert told["weights"].text == "4.0 GiB; 16.0 GiB of memory are free"
    assert told["context"].text == (
        "8192 tokens a request, as many as the model takes; 1.0 GiB hold 1048576 of all requests: "
        "128 of full length at a time"
    )


def test_one_that_does_not_fit_fails_with_what_would():
    told = findings(weights_bytes=20 * GIB)
    assert told["weights"].mark is Mark.FAIL
    assert "4-bit GGUF" in told["weights"].remedy
    assert "context" not in told
    assert "(-tp)" in findings(weights_bytes=20 * GIB, on_card=True)["weights"].remedy


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
    assert "trillm[transformers]" in without.remedy
    (broken,) = model_findings(probed(trouble="it is broken"), Settings(), machine())
    assert broken.mark is Mark.FAIL


def test_weights_that_are_kept_a_second_time_need_room_on_the_disk():
    small = machine(cache=Place(PLACE.path, "", GIB))
    found = [
        list(model_findings(probed(fit=fit(needs_laying_out=kept)), Settings(), small))[1] for kept in (True, False)
    ]
    assert [finding.mark for finding in found] == [Mark.WARN, Mark.OK]
    assert "has 1.0 GiB" in found[0].text
