"""The real hub library against a local hub: search, facts, files, cards, and every kind of no."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hub_server import Blob, HubServer, Repository, Trouble
from transfers import NAME, TOKEN, model_files, noise

from app.backend.hub import bandwidth
from app.backend.hub.access import HubError
from app.backend.hub.client import Hub
from app.backend.hub.examine import HEAD, Examined, examine
from app.backend.hub.fit import (
    LOAD_SHARE,
    NOT_MEASURED,
    Bandwidth,
    Machine,
    Verdict,
    fit,
    machine_now,
    step_bytes,
)
from app.backend.hub.ref import parse_ref
from app.backend.hub.support import Looked, Supported, support_of_config
from app.backend.transfer.faults import TransferError

GIB = 2**30


def folder_files(folder: Path) -> dict[str, Blob]:
    return {
        path.name: Blob(path.read_bytes(), lfs=path.suffix == ".safetensors")
        for path in folder.iterdir()
        if path.is_file()
    }


@pytest.fixture(scope="module")
def hub_with_models(shared_fixtures: Path) -> Iterator[tuple[HubServer, dict[str, Repository]]]:
    config = {"model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"]}
    repositories = [
        Repository("fix/llada2-tiny", folder_files(shared_fixtures / "llada2-tiny"), config=config),
        Repository(
            "fix/nvfp4", folder_files(shared_fixtures / "llada2-tiny-nvfp4-modelopt"), config=config
        ),
        Repository("fix/gemma", folder_files(shared_fixtures / "diffusion-gemma-tiny")),
        Repository("fix/broken", folder_files(shared_fixtures / "broken" / "f_wrong_num_experts")),
        Repository("fix/plain", model_files(2000, 3000), licence="mit"),
        Repository("fix/gated", model_files(500), gated=True, readers={TOKEN: "new"}),
        Repository("fix/private", model_files(500), private=True, readers={"hf_other123": "x"}),
        Repository("fix/pickle", {"config.json": Blob(b"{}"), "pytorch_model.bin": Blob(b"x")}),
        Repository("fix/gguf", {"m.gguf": Blob(b"x")}),
        Repository("fix/no-config", {"model.safetensors": Blob(b"x")}),
    ]
    with HubServer(*repositories) as server:
        yield server, server.repositories


@pytest.fixture
def server(hub_with_models: tuple[HubServer, dict[str, Repository]]) -> Iterator[HubServer]:
    server = hub_with_models[0]
    server.requests.clear()
    server.trouble = lambda _path: None
    server.api_status = lambda _path: None
    yield server
    server.settle()


@pytest.fixture
def hub(server: HubServer) -> Hub:
    return Hub(lambda: None, server.endpoint)


def examined(hub: Hub, name: str) -> Examined:
    return examine(hub, hub.look_up(parse_ref(name)))


def test_a_search_gives_cards_with_support_computed(hub: Hub) -> None:
    found = {model.repo_id: model for model in hub.search("fix/", limit=50)}
    assert "fix/private" not in found
    tiny = found["fix/llada2-tiny"]
    assert (tiny.licence, tiny.downloads, tiny.updated) == ("apache-2.0", 1234, "2026-02-03")
    assert tiny.support.state is Supported.YES
    assert tiny.support.looked is Looked.CONFIG
    assert found["fix/plain"].support.state is Supported.UNKNOWN
    assert found["fix/gated"].gated
    assert len(hub.search("fix/", limit=2)) == 2
    assert hub.search("nothing of this name") == ()


def test_a_model_is_pinned_to_its_commit_with_all_pages_of_its_tree(
    hub: Hub, server: HubServer
) -> None:
    repository = server.repositories["fix/plain"]
    listing = hub.look_up(parse_ref("fix/plain"))
    assert listing.model.commit == repository.commit
    names = {file.path for file in listing.files}
    assert names == {path for path in repository.files if "/" not in path}
    assert len([r for r in server.requests if "cursor=" in r.path]) >= 2
    weights = listing.file("model-00001-of-00002.safetensors")
    assert weights is not None
    assert weights.sha256 == repository.files[weights.path].sha256


def test_a_plan_has_the_needed_files_only(hub: Hub) -> None:
    plan = hub.plan(hub.look_up(parse_ref("fix/plain")))
    assert {file.path for file in plan.files} == {
        "config.json",
        "tokenizer_config.json",
        "added_tokens.json",
        "README.md",
        "LICENSE",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    assert plan.licence == "mit"


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("fix/pickle", "transfer.pickle", "hide a program"),
        ("fix/gguf", "transfer.no_weights", "GGUF"),
        ("fix/no-config", "transfer.no_weights", "config.json"),
    ],
)
def test_a_repository_with_nothing_to_run_is_refused_with_the_reason(
    hub: Hub, name: str, code: str, says: str
) -> None:
    with pytest.raises(TransferError, match=says) as caught:
        hub.plan(hub.look_up(parse_ref(name)))
    assert caught.value.code == code


def test_a_shard_that_the_index_names_and_nobody_has_is_refused(hub: Hub) -> None:
    listing = hub.look_up(parse_ref("fix/plain"))
    fewer = tuple(file for file in listing.files if "00002-of" not in file.path)
    with pytest.raises(TransferError) as caught:
        hub.plan(replace(listing, files=fewer))
    assert caught.value.code == "transfer.missing_shard"


@pytest.mark.parametrize(
    ("name", "token", "code"),
    [
        ("fix/nowhere", None, "hub.not_found"),
        ("fix/private", None, "hub.not_found"),
        ("fix/private", TOKEN, "hub.not_found"),
        ("fix/plain@v9", None, "hub.revision_not_found"),
        ("fix/plain", "hf_revoked12", "hub.token_invalid"),
    ],
)
def test_the_library_s_refusals_become_ours(
    server: HubServer, name: str, token: str | None, code: str
) -> None:
    with pytest.raises(HubError) as caught:
        Hub(lambda: token, server.endpoint).look_up(parse_ref(name))
    assert caught.value.code == code
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__, "the library's text, with addresses, goes no further"


def test_a_gated_model_shows_its_facts_and_refuses_its_files(server: HubServer) -> None:
    hub = Hub(lambda: TOKEN, server.endpoint)
    listing = hub.look_up(parse_ref("fix/gated"))
    assert listing.model.gated
    with pytest.raises(HubError) as caught:
        hub.read_json(listing)
    assert caught.value.code == "hub.licence_not_accepted"
    assert caught.value.link == f"{server.endpoint}/fix/gated"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_hub_is_said(hub: Hub, server: HubServer, status: int) -> None:
    server.api_status = lambda _path: (status, {})
    with pytest.raises(HubError) as caught:
        hub.look_up(parse_ref("fix/plain"))
    assert caught.value.code == "hub.busy"


def test_an_answer_of_another_shape_is_no_crash(hub: Hub, server: HubServer) -> None:
    """As from a network whose login page answers for every address."""
    server.api_status = lambda _path: (200, {"Content-Type": "text/html"})
    for ask in (lambda: hub.look_up(parse_ref("fix/plain")), lambda: hub.search("fix")):
        with pytest.raises(HubError) as caught:
            ask()
        assert caught.value.code == "hub.odd_answer"


def test_no_network_and_an_offline_switch_are_told_apart(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HubError) as caught:
        Hub(lambda: None, "http://127.0.0.1:9").look_up(parse_ref("a/b"))
    assert caught.value.code == "hub.unreachable"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError) as caught:
        Hub(lambda: None, server.endpoint).look_up(parse_ref("a/b"))
    assert caught.value.code == "hub.offline"


def test_the_owner_of_a_token_is_known(server: HubServer) -> None:
    assert Hub(lambda: TOKEN, server.endpoint).who() == "somebody"
    for token, code in ((None, "hub.no_token"), ("hf_wrong1234", "hub.token_invalid")):
        with pytest.raises(HubError) as caught:
            Hub(lambda token=token: token, server.endpoint).who()
        assert caught.value.code == code


def test_a_card_is_text_without_anything_remote(hub: Hub, server: HubServer) -> None:
    assert hub.card_text(hub.look_up(parse_ref("fix/plain"))) == "# Ein Modell ✓"


def test_a_supported_model_is_known_from_a_few_kilobytes(hub: Hub, server: HubServer) -> None:
    found = examined(hub, "fix/llada2-tiny")
    assert found.support.state is Supported.YES
    assert found.support.looked is Looked.HEADERS
    assert found.quantisation == "bfloat16"
    assert found.layout is not None
    assert found.parameters == found.layout.spec.table.parameters
    assert examined(hub, "fix/nvfp4").quantisation == "NVFP4 (ModelOpt)"
    asked = [r for r in server.file_requests() if r.path.startswith("/lfs/")]
    assert all("range" in request.headers for request in asked)


@pytest.mark.parametrize(
    ("name", "state", "says"),
    [
        ("fix/gemma", Supported.NOT_YET, "DiffusionGemma"),
        ("fix/broken", Supported.NO, "num_experts"),
        ("fix/plain", Supported.NO, "config.json"),
    ],
)
def test_an_unsupported_model_says_why_before_it_is_downloaded(
    hub: Hub, name: str, state: Supported, says: str
) -> None:
    found = examined(hub, name)
    if name == "fix/gemma" and support_of_config(found.json.config).state is Supported.YES:
        assert found.support.state is Supported.YES  # the engine has learnt it since
        return
    assert found.support.state is state
    assert says in found.support.reason
    assert found.layout is None


def test_a_header_longer_than_the_first_request_is_read_whole() -> None:
    entries = {
        f"layer.{i}.{'x' * 100}": {
            "dtype": "BF16",
            "shape": [1],
            "data_offsets": [2 * i, 2 * i + 2],
        }
        for i in range(3000)
    }
    header = json.dumps(entries).encode()
    assert len(header) > HEAD
    data = len(header).to_bytes(8, "little") + header + bytes(6000)
    files = {"config.json": Blob(b'{"model_type": "llada2_moe"}')}
    files["model.safetensors"] = Blob(data, lfs=True)
    with HubServer(Repository(NAME, files)) as server:
        hub = Hub(lambda: None, server.endpoint)
        found = examine(hub, hub.look_up(parse_ref(NAME)))
        assert found.quantisation == "bfloat16"
        server.trouble = lambda _path: Trouble(ignore_range=True)
        assert examine(hub, hub.look_up(parse_ref(NAME))).quantisation == "bfloat16"


@pytest.mark.parametrize("data", [b"", b"1234", noise(500), (10**15).to_bytes(8, "little") + b"{}"])
def test_a_malformed_header_is_a_refusal_and_no_crash(data: bytes) -> None:
    files = {"config.json": Blob(b'{"model_type": "llada2_moe"}')}
    files["model.safetensors"] = Blob(data, lfs=True)
    with HubServer(Repository(NAME, files)) as server:
        hub = Hub(lambda: None, server.endpoint)
        found = examine(hub, hub.look_up(parse_ref(NAME)))
        assert found.support.state is Supported.NO
        assert "model.safetensors" in found.support.reason


GPU = Machine("cuda:0", "Test GPU", 16 * GIB, 32 * GIB, 900 * GIB)


def test_a_small_model_fits_with_its_numbers(hub: Hub) -> None:
    found = examined(hub, "fix/llada2-tiny")
    assert found.layout is not None
    sum_ = fit(found, GPU, 100)
    spec = found.layout.spec
    assert sum_.verdict is Verdict.FITS
    assert sum_.weights == found.weight_bytes
    assert sum_.kv == 2 * spec.kv_numbers * (100 + spec.block_length)
    assert sum_.disk_verdict is Verdict.FITS
    assert sum_.download == found.download_bytes
    assert fit(found, GPU, 100, already=10**12).download == 0
    assert sum_.sentences[0].startswith("Fits")


def test_speed_is_bytes_over_measured_bandwidth_or_nothing_with_the_reason(hub: Hub) -> None:
    found = examined(hub, "fix/llada2-tiny")
    unmeasured = fit(found, GPU, 100)
    assert unmeasured.ms_per_step is None
    assert "not been measured" in unmeasured.ms_reason
    measured = fit(found, replace(GPU, bandwidth=Bandwidth(1e9)), 100)
    assert measured.step_bytes is not None
    assert measured.ms_per_step == pytest.approx(measured.step_bytes / 1e6)


def test_a_step_reads_the_experts_it_is_expected_to_choose(hub: Hub) -> None:
    """By hand for the tiny model: everything but the embedding, and of each layer's experts the
    expected share."""
    layout = examined(hub, "fix/llada2-tiny").layout
    assert layout is not None
    table, experts = layout.spec.table, layout.spec.table.experts
    assert experts is not None
    one = sum(rows * cols for _, rows, cols in experts.shapes.values())
    routed = 2 * one * experts.count * len(experts.layers)
    stored = sum(m.nbytes for m in layout.inventory.matrices.values())
    stored += sum(t.nbytes for t in layout.inventory.tensors.values())
    embedding = layout.inventory.matrices[table.embedding].nbytes
    share = 1 - (1 - experts.per_token / experts.count) ** layout.spec.block_length
    kv = 2 * layout.spec.kv_numbers * (64 + layout.spec.block_length)
    expected = stored - embedding - routed * (1 - share) + kv
    assert step_bytes(layout, 64, None) == pytest.approx(expected, abs=2)
    assert layout.inventory.stacks == {}


def test_each_verdict_is_reached_and_gives_its_reason(hub: Hub) -> None:
    found = examined(hub, "fix/llada2-tiny")
    needed = found.weight_bytes
    refused = fit(found, replace(GPU, memory=needed), 64)
    assert refused.verdict is Verdict.DOES_NOT_FIT
    roomy = fit(found, replace(GPU, memory=100 * needed), 64)
    assert roomy.verdict is Verdict.FITS
    assert roomy.kv is not None
    short = fit(found, replace(GPU, memory=int(needed * 1.5)), 32_000)
    assert short.verdict in (Verdict.TIGHT, Verdict.DOES_NOT_FIT)
    unknown = fit(found, replace(GPU, memory=None), 64)
    assert unknown.verdict is Verdict.UNKNOWN
    full = fit(found, replace(GPU, disk=1000), 64)
    assert full.disk_verdict is Verdict.DOES_NOT_FIT
    absent = fit(found, replace(GPU, disk=None), 64)
    assert absent.disk_verdict is Verdict.UNKNOWN
    assert len({s.sentences[0] for s in (refused, roomy, short, unknown)}) == 4


def test_the_cpu_computes_in_float32_where_there_is_room(hub: Hub) -> None:
    found = examined(hub, "fix/nvfp4")
    assert found.parameters is not None
    cpu = Machine("cpu", "Test CPU", 16 * GIB, 16 * GIB, 900 * GIB)
    assert fit(found, cpu, 64).weights == 4 * found.parameters
    narrow = replace(cpu, memory=2 * found.parameters * 2)
    assert fit(found, narrow, 64).weights == found.weight_bytes


def test_a_model_that_would_be_refused_gets_no_made_up_numbers(hub: Hub) -> None:
    found = examined(hub, "fix/broken")
    sum_ = fit(found, GPU, 64)
    assert sum_.verdict is Verdict.UNKNOWN
    assert (sum_.kv, sum_.step_bytes, sum_.ms_per_step) == (None, None, None)
    small = fit(found, replace(GPU, memory=found.weight_bytes), 64)
    assert small.verdict is Verdict.DOES_NOT_FIT


def test_the_rules_are_those_of_the_engine(shared_fixtures: Path) -> None:
    import torch

    from engine.checkpoint import open_checkpoint
    from engine.errors import RuntimeFailure
    from engine.loading import choose_placement

    checkpoint = open_checkpoint(shared_fixtures / "llada2-tiny")
    checkpoint.release()
    least = int(checkpoint.total_bytes / LOAD_SHARE) + 2
    gpu = torch.device("cuda")
    assert not choose_placement(checkpoint, gpu, least, None).expand
    with pytest.raises(RuntimeFailure):
        choose_placement(checkpoint, gpu, least - 8, None)
    dense = int(4 * checkpoint.spec.table.parameters / LOAD_SHARE) + 2
    cpu = torch.device("cpu")
    assert choose_placement(checkpoint, cpu, dense, None).expand
    assert not choose_placement(checkpoint, cpu, dense - 8, None).expand


def test_a_machine_is_described_by_what_is_free_now(tmp_path: Path) -> None:
    from engine.hardware import describe_hardware

    machine = machine_now(describe_hardware(), tmp_path, NOT_MEASURED)
    assert machine.memory is not None
    assert machine.disk is not None
    assert machine.disk > 0
    assert machine_now(describe_hardware(), tmp_path / "absent", NOT_MEASURED).disk is None


def test_bandwidth_is_measured_once_and_kept_for_its_device(tmp_path: Path) -> None:
    store = tmp_path / "bandwidth.json"
    assert bandwidth.known(store, "A") == NOT_MEASURED
    speed = bandwidth.measure("cpu", size=1 << 22, rounds=3)
    assert 1e8 < speed < 1e13
    bandwidth.keep(store, "A", speed)
    bandwidth.keep(store, "B", 2.0)
    assert bandwidth.known(store, "A") == Bandwidth(speed)
    store.write_text("damaged")
    assert bandwidth.known(store, "A") == NOT_MEASURED
