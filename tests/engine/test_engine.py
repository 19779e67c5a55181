"""The engine behind its protocol, on the tiny model with a made-up tokenizer."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.cli import main
from engine.engine import TorchEngine, load_engine
from engine.errors import CheckpointError, RequestError, RuntimeFailure, UnblurError
from engine.paths import demo_folder
from engine.protocol import Engine
from engine.tokenizer import ChatTokenizer
from engine.trace import TraceRecorder
from engine.types import (
    BlockFinished,
    DecodeSettings,
    Event,
    Finished,
    GenerateRequest,
    LoadProgress,
    Message,
    Started,
    StepTaken,
    TokenState,
)

WORDS = 490
SPECIAL = {500: "<|endoftext|>", 503: "<|mask|>"}


def write_tokenizer(folder: Path) -> None:
    """One word a token: w0 ... w489, and the special tokens at the ids the tiny config names."""
    vocab = {f"w{n}": n for n in range(WORDS)}
    vocab |= {f"unused{n}": n for n in range(WORDS, 512) if n not in SPECIAL}
    vocab |= {text: number for number, text in SPECIAL.items()}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL.values()])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }} {% endfor %}", encoding="utf-8"
    )


@pytest.fixture(scope="module")
def chat_folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # A path with spaces and non-ASCII letters: the whole module runs from it.
    folder = tmp_path_factory.mktemp("モデル ü") / "tiny　chat"
    shutil.copytree(tiny_folder, folder, ignore=shutil.ignore_patterns("expected"))
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def engine(chat_folder: Path) -> TorchEngine:
    return load_engine(chat_folder, device="cpu")


def ask(text: str, *, limit: int = 70, **settings: float | int | None) -> GenerateRequest:
    chosen = replace(DecodeSettings(threshold=0.7), **settings)
    return GenerateRequest((Message("user", text),), limit, chosen)


def events_of(engine: Engine, request: GenerateRequest) -> list[Event]:
    return list(engine.generate(request))


def finished(events: list[Event]) -> Finished:
    last = events[-1]
    assert isinstance(last, Finished)
    return last


def test_a_reply_is_started_steps_blocks_finished(engine: TorchEngine) -> None:
    events = events_of(engine, ask("w1 w2 w3"))
    assert isinstance(events[0], Started)
    assert events[0].prompt_tokens == 3
    steps = [e for e in events if isinstance(e, StepTaken)]
    blocks = [e for e in events if isinstance(e, BlockFinished)]
    done = finished(events)
    assert sum(isinstance(e, Finished) for e in events) == 1
    assert done.stats.forwards == len(steps) == steps[-1].forwards
    assert done.stats.blocks == len(blocks) == steps[-1].block + 1
    assert done.stats.tokens == len(done.ids) <= 70
    assert done.text == blocks[-1].text
    assert 503 not in done.ids
    assert done.stats.commit_forwards == 0
    assert done.stats.ceiling == pytest.approx(len(done.ids) / len(blocks))


def test_states_only_move_forward_inside_a_block(engine: TorchEngine) -> None:
    for event in events_of(engine, ask("w1 w2 w3 w4")):
        if isinstance(event, StepTaken) and event.block == 0:
            assert set(event.state[:4]) == {TokenState.PROMPT}
            assert np.isnan(event.confidence[:4]).all()
            judged = event.confidence[4:]
            assert ((judged > 0) & (judged <= 1)).all()
            assert (event.entropy[4:] >= 0).all()
            drafts = event.state == TokenState.DRAFT
            assert not (event.ids[drafts] == 503).any()


def test_the_trace_holds_every_step(engine: TorchEngine) -> None:
    recorder = TraceRecorder()
    steps = [e for e in events_of(engine, ask("w9")) if isinstance(e, StepTaken)]
    for step in steps:
        recorder.add(step)
    trace = recorder.trace()
    assert len(trace) == len(steps)
    assert trace.ids.shape == (len(steps), 32)
    assert list(trace.steps_of(0)) == [n for n, s in enumerate(steps) if s.block == 0]
    assert (np.diff(trace.seconds) >= 0).all()


def test_the_same_seed_gives_the_same_text(engine: TorchEngine) -> None:
    def text(seed: int) -> tuple[int, ...]:
        return finished(events_of(engine, ask("w5 w6", temperature=1.0, seed=seed))).ids

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_stop_ends_the_reply_within_one_step(engine: TorchEngine) -> None:
    stop = threading.Event()
    steps_after_stop = 0
    last: Event | None = None
    for event in engine.generate(ask("w5", threshold=1.0), stop):
        if isinstance(event, StepTaken):
            steps_after_stop += stop.is_set()
            if event.step == 3:
                stop.set()
        last = event
    assert steps_after_stop <= 1
    assert isinstance(last, Finished)
    assert last.reason == "stopped"
    assert 503 not in last.ids
    assert finished(events_of(engine, ask("w5"))).reason in ("length", "stop_token")


def test_stop_before_the_first_step_gives_an_empty_reply(engine: TorchEngine) -> None:
    stop = threading.Event()
    stop.set()
    events = list(engine.generate(ask("w5"), stop))
    assert finished(events).reason == "stopped"
    assert finished(events).ids == ()


@pytest.mark.parametrize("text", ["", "  \n "])
def test_an_empty_prompt_is_refused(engine: TorchEngine, text: str) -> None:
    with pytest.raises(RequestError, match="empty") as caught:
        events_of(engine, ask(text))
    assert caught.value.code == "request.empty_prompt"


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(
    engine: TorchEngine,
) -> None:
    with pytest.raises(RequestError) as caught:
        events_of(engine, ask("w1 " * 2000))
    assert caught.value.code == "request.too_long"
    assert "2000" in caught.value.message
    assert str(engine.info.context) in caught.value.message


def test_a_reply_never_outgrows_the_context(engine: TorchEngine) -> None:
    prompt = engine.info.context - 40
    done = finished(events_of(engine, ask("w1 " * prompt, limit=10_000)))
    assert len(done.ids) <= 40


@pytest.mark.parametrize(
    "change",
    [
        {"threshold": 1.5},
        {"editing_threshold": 2.0},
        {"temperature": -1.0},
        {"temperature": 1e-39},  # logits divided by it are infinite
        {"top_p": 0.0},
        {"top_p": 1e-50},  # 0 in float32, which would forbid every token
        {"top_k": 2**63},
        {"steps": 0},
        {"steps": 2**63},
        {"seed": -1},
        {"threshold": float("nan")},
    ],
)
def test_settings_out_of_range_are_refused(
    engine: TorchEngine, change: dict[str, float | int]
) -> None:
    with pytest.raises(RequestError) as caught:
        events_of(engine, ask("w1", **change))
    assert caught.value.code == "request.settings"


def test_batched_replies_equal_single_ones(engine: TorchEngine) -> None:
    prompts = [[n + 1] * (5 + 13 * n) for n in range(5)]
    settings = DecodeSettings(threshold=0.6)
    together = engine.generate_batch(prompts, settings, 40, batch=4)
    alone = [engine.generate_batch([p], settings, 40, batch=1)[0] for p in prompts]
    assert together == alone


def test_loading_reports_progress_up_to_the_whole(chat_folder: Path) -> None:
    seen: list[LoadProgress] = []
    load_engine(chat_folder, seen.append, device="cpu").unload()
    phases = list(dict.fromkeys(p.phase for p in seen))
    assert phases == ["Checking the files", "Loading weights"]
    for phase in phases:
        done = [p.done_bytes for p in seen if p.phase == phase]
        total = next(p.total_bytes for p in seen if p.phase == phase)
        assert done == sorted(done)
        assert done[-1] == pytest.approx(total, rel=0.02)


def test_loading_can_be_stopped(chat_folder: Path) -> None:
    stop = threading.Event()

    def stop_soon(progress: LoadProgress) -> None:
        stop.set()

    with pytest.raises(RuntimeFailure) as caught:
        load_engine(chat_folder, stop_soon, stop, device="cpu")
    assert caught.value.code == "load.stopped"


def test_a_folder_without_tokenizer_cannot_chat(tiny_folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json") as caught:
        load_engine(tiny_folder, device="cpu")
    assert caught.value.code == "checkpoint.no_tokenizer"


def test_an_unloaded_engine_says_so(chat_folder: Path) -> None:
    engine = load_engine(chat_folder, device="cpu")
    engine.unload()
    with pytest.raises(RuntimeFailure) as caught:
        events_of(engine, ask("w1"))
    assert caught.value.code == "engine.unloaded"


def test_unloading_gives_the_memory_back(chat_folder: Path) -> None:
    process = psutil.Process()
    load_engine(chat_folder, device="cpu").unload()
    before = process.memory_info().rss
    for _ in range(10):
        load_engine(chat_folder, device="cpu").unload()
    assert process.memory_info().rss - before < 20e6


def test_a_model_that_gives_nan_ends_with_a_sentence_and_stays_usable(chat_folder: Path) -> None:
    engine = load_engine(chat_folder, device="cpu")
    model = engine._model
    assert model is not None
    weight = model.norm.weight
    kept = weight.clone()
    with torch.no_grad():
        weight[3] = float("nan")
    with pytest.raises(RuntimeFailure) as caught:
        events_of(engine, ask("w1"))
    assert caught.value.code == "runtime.nonfinite"
    with torch.no_grad():
        weight.copy_(kept)
    assert finished(events_of(engine, ask("w1"))).ids


def test_more_weights_than_memory_is_refused_before_loading(
    chat_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.engine.free_memory", lambda device: 100_000)
    with pytest.raises(RuntimeFailure) as caught:
        load_engine(chat_folder, device="cpu")
    assert caught.value.code == "load.out_of_memory"


def test_a_load_takes_its_device_first_and_gives_memory_back_before_measuring_what_is_left(
    chat_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    def note(name: str, value: int | None = None) -> Callable[..., int | None]:
        def call(*arguments: object) -> int | None:
            happened.append(name)
            return value

        return call

    monkeypatch.setattr("engine.engine.use_device", note("device"))
    monkeypatch.setattr("engine.engine.free_memory", note("free", 1 << 40))
    monkeypatch.setattr("engine.engine.release_memory", note("release"))
    load_engine(chat_folder, device="cpu")
    assert happened == ["device", "free", "release", "free"]


def test_special_tokens_do_not_reach_the_text_but_have_names_on_the_canvas(
    engine: TorchEngine,
) -> None:
    assert engine.decode([1, 500, 2]) == "w1 w2"
    assert engine.pieces([1, 503]) == ("w1", "<|mask|>")


def test_a_special_token_typed_by_a_person_stays_text() -> None:
    tokenizer = ChatTokenizer.open(demo_folder())
    typed = "count the words in a <|role_end|> b <|mask|>"
    plain = tokenizer.encode_chat([Message("user", "count the words")])
    ids = tokenizer.encode_chat([Message("user", typed)])
    config = json.loads((demo_folder() / "config.json").read_text(encoding="utf-8"))
    assert config["mask_token_id"] not in ids
    assert ids[:2] == plain[:2]
    assert ids[-2:] == plain[-2:]
    assert typed in tokenizer.decode(ids)


def test_a_template_cannot_reach_python(chat_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hostile"
    shutil.copytree(chat_folder, folder)
    template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    engine = load_engine(folder, device="cpu")
    with pytest.raises(RequestError) as caught:
        events_of(engine, ask("w1"))
    assert caught.value.code == "request.template"


def test_generate_on_the_command_line_prints_the_answer_and_its_figures(
    chat_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(
        ["generate", "--model", str(chat_folder), "--prompt", "w1 w2", "--max-new-tokens", "40"]
    )
    out = capsys.readouterr().out
    assert status == 0
    assert "tok/s" in out
    assert "TPF" in out
    assert "forwards" in out
    assert "first block after" in out
    assert "\x1b" not in out  # not a terminal: no escape sequences


def test_errors_on_the_command_line_are_a_sentence_an_action_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["generate", "--model", str(tmp_path / "nowhere"), "--prompt", "x"])
    captured = capsys.readouterr()
    assert status == 1
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert "nowhere" in captured.err


def test_every_error_has_a_code_a_sentence_and_an_action(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}), encoding="utf-8")
    with pytest.raises(UnblurError) as caught:
        load_engine(tmp_path, device="cpu")
    assert "." in caught.value.code
    assert caught.value.message
    assert caught.value.action
