"""The folder of policy files: what can be named, and that nothing outside of it is ever read or written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.errors import PolicyError
from offload_runtime.policy import Policy, SourceKind
from offload_runtime.policy.files import DEFAULT_FILE, SUFFIX, PolicyFolder

TEXT = "mode: speed\n"


@pytest.fixture
def folder(tmp_path: Path) -> PolicyFolder:
    (tmp_path / "secret.offload.yaml").write_text(TEXT)
    return PolicyFolder(tmp_path / "layerwise_offload")


def test_a_folder_that_is_not_there_holds_nothing_and_is_not_made(folder: PolicyFolder) -> None:
    assert folder.names() == []
    assert folder.user_default() == Policy()
    with pytest.raises(PolicyError, match="there is none yet"):
        folder.read("mine.offload.yaml")
    assert not folder.root.exists()


def test_what_is_written_is_read_again(folder: PolicyFolder) -> None:
    assert folder.write("My card (8 GB)", TEXT, replace=False) == f"My card (8 GB){SUFFIX}"
    assert folder.names() == [f"My card (8 GB){SUFFIX}"]
    (argument,) = folder.load(f"My card (8 GB){SUFFIX}").arguments
    assert (argument.source.kind, argument.source.place) == (SourceKind.FILE, f"file My card (8 GB){SUFFIX}")
    assert [p.name for p in folder.root.iterdir()] == [f"My card (8 GB){SUFFIX}"]  # no part left behind


def test_a_file_is_replaced_only_on_request(folder: PolicyFolder) -> None:
    folder.write("a", TEXT, replace=False)
    folder.write("a", TEXT, replace=False)  # the same content is no loss
    with pytest.raises(PolicyError, match="is there already"):
        folder.write("a", "mode: memory\n", replace=False)
    assert folder.read(f"a{SUFFIX}").decode() == TEXT
    folder.write("a", "mode: memory\n", replace=True)
    assert folder.read(f"a{SUFFIX}") == b"mode: memory\n"


def test_the_default_file_is_the_lowest_source(folder: PolicyFolder) -> None:
    folder.write("default", TEXT, replace=False)
    (argument,) = folder.user_default().arguments
    assert argument.source.kind is SourceKind.USER_DEFAULT
    assert DEFAULT_FILE in str(argument.source)


def test_a_broken_default_file_is_named(folder: PolicyFolder) -> None:
    folder.write("default", "mode: fast\n", replace=False)
    with pytest.raises(PolicyError, match=r"your default file default\.offload\.yaml, line 1, column 7"):
        folder.user_default()


BAD_NAMES = [
    "../secret.offload.yaml",
    "..\\secret.offload.yaml",
    "a/../../secret.offload.yaml",
    "/etc/passwd",
    "/etc/passwd.offload.yaml",
    "C:\\x.offload.yaml",
    "sub/a.offload.yaml",
    ".hidden.offload.yaml",
    ".offload.yaml",
    "a\x00.offload.yaml",
    "a\n.offload.yaml",
    "nul.offload.yaml",
    "COM1.offload.yaml",
    "a.yaml",
    "a.txt",
    "",
    "~/a.offload.yaml",
    "x" * 300 + ".offload.yaml",
    "ä.offload.yaml",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_is_a_bare_file_name(folder: PolicyFolder, name: str) -> None:
    folder.root.mkdir()
    for act in (lambda: folder.read(name), lambda: folder.load(name)):
        with pytest.raises(PolicyError, match="is not the name of a policy file"):
            act()


@given(st.text(max_size=40))
def test_whatever_is_written_lands_in_the_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    top = tmp_path_factory.mktemp("top")
    folder = PolicyFolder(top / "policies")
    try:
        written = folder.write(name, TEXT, replace=False)
    except PolicyError:
        assert not [p for p in top.rglob("*") if p.is_file()]
        return
    assert [p.relative_to(top).parts for p in top.rglob("*") if p.is_file()] == [("policies", written)]


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs symbolic links")
def test_links_do_not_lead_out(folder: PolicyFolder) -> None:
    folder.root.mkdir()
    (folder.root / "link.offload.yaml").symlink_to(folder.root.parent / "secret.offload.yaml")
    assert folder.names() == []
    with pytest.raises(PolicyError, match="there is no policy file"):
        folder.read("link.offload.yaml")
    with pytest.raises(PolicyError, match="leads out of the policy folder"):
        folder.write("link", "mode: memory\n", replace=True)
    assert (folder.root.parent / "secret.offload.yaml").read_text() == TEXT


def test_a_folder_that_is_itself_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "policies").symlink_to(tmp_path / "elsewhere")
    folder = PolicyFolder(tmp_path / "policies")
    folder.write("a", TEXT, replace=False)
    assert folder.names() == [f"a{SUFFIX}"]
    assert folder.read(f"a{SUFFIX}").decode() == TEXT


def test_other_files_are_not_listed_and_json_is(folder: PolicyFolder) -> None:
    folder.root.mkdir()
    for name in ("b.offload.json", "a.offload.yml", "notes.txt", "x.yaml", ".part"):
        (folder.root / name).write_text("{}")
    (folder.root / "dir.offload.yaml").mkdir()
    assert folder.names() == ["a.offload.yml", "b.offload.json", "dir.offload.yaml"]
    with pytest.raises(PolicyError, match="there is no policy file"):
        folder.read("dir.offload.yaml")


def test_what_the_system_refuses_is_told(folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a", TEXT, replace=False)
    monkeypatch.setattr(os, "replace", _full)
    with pytest.raises(PolicyError, match="cannot be written: No space left on device"):
        folder.write("b", TEXT, replace=False)
    monkeypatch.setattr(Path, "open", _full)
    with pytest.raises(PolicyError, match="cannot be read: No space left on device"):
        folder.read(f"a{SUFFIX}")


def _full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")
