"""Bad files in Hugging Face's cache are put right in place, as its own tools would have them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from hub_server import HubServer, Repository
from library_models import fill_cache
from services import services_in
from transfers import NAME, QUICK, serving

from app.backend.hub.access import HubError
from app.backend.library.folders import LibraryError
from app.backend.library.scan import LocalModel
from app.backend.library.verify import FileState, verify
from app.backend.model_services import ModelServices
from app.backend.repair import plan_repair
from app.backend.transfer.download import Download
from app.backend.transfer.faults import TransferError


@pytest.fixture
def served() -> Iterator[tuple[HubServer, Repository]]:
    with serving(5000) as pair:
        yield pair


@pytest.fixture
def services(
    tmp_path: Path, served: tuple[HubServer, Repository], monkeypatch: pytest.MonkeyPatch
) -> ModelServices:
    """With a cache that the real tools filled from the test hub."""
    hub, _ = served
    fill_cache(tmp_path / "hub", hub.endpoint, ["*.json", "*.safetensors", "LICENSE"], monkeypatch)
    made = services_in(tmp_path / "data", hub.endpoint, tmp_path / "hub", QUICK)
    return made(lambda: None)


def cached(services: ModelServices) -> LocalModel:
    (model,) = services.library.scan().models
    return model


def repair(services: ModelServices) -> None:
    model = cached(services)
    plan = plan_repair(services, verify(model))
    Download(plan, model.root, services.tokens.get_for, QUICK).run()


def tree(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): path.readlink() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.mark.parametrize("harm", ["cut", "other bytes", "longer", "content gone", "several"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_the_cache_is_again_as_it_was_and_nothing_of_ours_stays(
    services: ModelServices, served: tuple[HubServer, Repository], name: str, harm: str
) -> None:
    hub, _ = served
    model = cached(services)
    assert verify(model).is_proven
    before = tree(model.root)
    names = ("model.safetensors", "config.json") if harm == "several" else (name,)
    for harmed in names:
        content = (model.path / harmed).resolve()
        right = content.read_bytes()
        if harm == "content gone":
            content.unlink()
        else:
            spoiled = bytes(byte ^ 1 for byte in right)
            content.write_bytes({"cut": right[:-2], "longer": right + b"!"}.get(harm, spoiled))
    assert {check.path for check in verify(cached(services)).bad} == set(names)
    hub.requests.clear()
    repair(services)
    assert tree(model.root) == before
    assert verify(cached(services)).is_proven
    assert len(hub.file_requests()) == len(names), "only the bad files were fetched"
    assert [p.name for p in model.root.iterdir() if p.name.startswith(".unblur")] == []
    kept = huggingface_hub.scan_cache_dir(model.root)
    assert kept.warnings == []
    assert [repo.repo_id for repo in kept.repos] == [NAME]


def test_a_name_that_leads_elsewhere_gets_a_file_and_the_elsewhere_is_not_written(
    services: ModelServices, tmp_path: Path
) -> None:
    model = cached(services)
    mine = tmp_path / "mine.safetensors"
    mine.write_bytes(b"not the cache's")
    link = model.path / "model.safetensors"
    content = link.resolve()
    link.unlink()
    link.symlink_to(mine)
    assert [check.state for check in verify(cached(services)).bad] == [FileState.DAMAGED]
    repair(services)
    assert mine.read_bytes() == b"not the cache's"
    assert link.read_bytes() == content.read_bytes()
    assert verify(cached(services)).bad == ()


def test_a_repair_of_a_cache_that_cannot_be_written_says_so_and_changes_nothing(
    services: ModelServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cached(services)
    (model.path / "config.json").resolve().write_bytes(b"{}")
    before = tree(model.root)
    plan = plan_repair(services, verify(cached(services)))

    def refuse(*_args: object, **_options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(TransferError) as caught:
        Download(plan, model.root, services.tokens.get_for, QUICK).run()
    assert caught.value.code == "transfer.not_writable"
    assert tree(model.root) == before


def test_without_a_network_or_a_version_a_repair_says_what_to_do_instead(
    services: ModelServices, served: tuple[HubServer, Repository], tmp_path: Path
) -> None:
    hub, _ = served
    model = cached(services)
    (model.path / "config.json").resolve().write_bytes(b"{}")

    def unlisted_file(path: str, value: Any) -> Any:
        return [e for e in value if e["path"] != "config.json"] if "/tree/" in path else value

    hub.retold = unlisted_file
    with pytest.raises(LibraryError) as unlisted:
        plan_repair(services, verify(model))
    assert unlisted.value.code == "library.not_published"
    model.path.rename(model.path.with_name("e" * 40))
    with pytest.raises(HubError) as gone:
        plan_repair(services, verify(cached(services)))
    assert gone.value.code == "hub.revision_not_found"
    offline = services_in(tmp_path / "data", cache=tmp_path / "hub")(lambda: None)
    with pytest.raises(HubError) as caught:
        plan_repair(offline, verify(cached(offline)))
    assert caught.value.code == "hub.unreachable"


def test_pickles_and_code_of_a_cache_are_neither_read_nor_fetched(
    services: ModelServices,
    served: tuple[HubServer, Repository],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub, _ = served
    fill_cache(tmp_path / "hub", hub.endpoint, ["*.bin", "*.py"], monkeypatch)
    model = cached(services)
    (model.path / "pytorch_model.bin").resolve().write_bytes(b"spoiled")
    (model.path / "modeling_llada.py").resolve().unlink()  # its name leads nowhere now
    model = cached(services)
    assert model.problem == ""
    report = verify(model)
    assert report.is_proven
    assert {check.path for check in report.files}.isdisjoint(
        {"pytorch_model.bin", "modeling_llada.py"}
    )
    (model.path / "config.json").resolve().write_bytes(b"{}")
    repair(services)
    assert (model.path / "pytorch_model.bin").read_bytes() == b"spoiled"
    assert not (model.path / "modeling_llada.py").exists()
    assert verify(cached(services)).is_proven
