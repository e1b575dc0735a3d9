"""The folder of policy files: what can be named, and that nothing outside of it is ever read or written."""

from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload_runtime.errors import PolicyError
from offload_runtime.policy import Policy, SourceKind
from offload_runtime.policy.files import DEFAULT_FILE, SUFFIX, PolicyFolder

TEXT = "mode: speed\n"
needs_links = pytest.mark.skipif(os.name == "nt", reason="needs symbolic links")


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


def test_what_could_not_be_read_again_is_not_written(folder: PolicyFolder) -> None:
    long = "components:\n" + "".join(f"  text_encoder_{i}: cpu\n" for i in range(2, 5000))
    for text in (long, "#" * 70_000):
        with pytest.raises(PolicyError, match=r"a\.offload\.yaml, line \d+, column \d+: .* at most"):
            folder.write("a", text, replace=True)
    assert not folder.root.exists()


BAD_NAMES = [
    "../secret.offload.yaml",
    "..\\secret.offload.yaml",
    "a/../../secret.offload.yaml",
    "/etc/passwd",
    "/etc/passwd.offload.yaml",
    "C:\\x.offload.yaml",
    "C:x.yaml",
    "a.yaml:stream",
    "sub/a.offload.yaml",
    ".hidden.offload.yaml",
    ".offload.yaml",
    ".yaml",
    ".",
    "..",
    "a\x00.offload.yaml",
    "a\n.offload.yaml",
    "a\x7f.yaml",
    "nul.offload.yaml",
    "nul",
    "NUL .yaml",
    "COM1.offload.yaml",
    "com¹.yaml",
    "conin$.yaml",
    "",
    "   ",
    "~/a.offload.yaml",
    "x" * 300 + ".offload.yaml",
    "模" * 100,
    "what?.yaml",
    "a*.yaml",
    "a|b.yaml",
    '"a".yaml',
    "<a>.yaml",
    "evil\u202elmay.yaml",
    "a\u200b.yaml",
    "a\u2028b.yaml",
    "\ud800.yaml",
    "∕etc∕a".replace("∕", "/"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_is_a_bare_file_name(folder: PolicyFolder, name: str) -> None:
    folder.root.mkdir()
    before = sorted(folder.root.parent.rglob("*"))
    for act in (
        lambda: folder.read(name),
        lambda: folder.load(name),
        lambda: folder.write(name, TEXT, replace=True),
    ):
        with pytest.raises(PolicyError, match="is not the name of a policy file") as refused:
            act()
        assert str(refused.value).isprintable()
    assert sorted(folder.root.parent.rglob("*")) == before


GOOD_NAMES = [
    ("mine now", "mine now.offload.yaml"),
    ("  mine  ", "mine.offload.yaml"),
    ("a.offload", "a.offload.yaml"),
    ("flux v1.5", "flux v1.5.offload.yaml"),
    ("a.offload.yaml", "a.offload.yaml"),
    ("a.offload.json", "a.offload.json"),
    ("a.offload.yml", "a.offload.yml"),
    ("A.Offload.YAML", "A.Offload.YAML"),
    ("policy.yaml", "policy.yaml"),
    ("policy.json", "policy.json"),
    ("policy.offload (1).yaml", "policy.offload (1).yaml"),
    ("policy.offload(2).json", "policy.offload(2).json"),
    ("policy.offload copy.yaml", "policy.offload copy.yaml"),
    ("policy.offload - Kopie.yaml", "policy.offload - Kopie.yaml"),
    ("Meine Karte für große Modelle", "Meine Karte für große Modelle.offload.yaml"),
    ("cafe\u0301.yaml", "cafe\u0301.yaml"),
    ("显存策略", "显存策略.offload.yaml"),
    ("видеокарта №2.yaml", "видеокарта №2.yaml"),
    ("Tom & Jerry's [8 GB] #1, 50% {x}=y!", "Tom & Jerry's [8 GB] #1, 50% {x}=y!.offload.yaml"),
    ("😀.yaml", "😀.yaml"),
    ("console", "console.offload.yaml"),
    ("com10.yaml", "com10.yaml"),
    ("-rf", "-rf.offload.yaml"),
    ("auto.yaml", "auto.yaml"),
]


@pytest.mark.parametrize(("name", "file"), GOOD_NAMES)
def test_whatever_can_be_saved_can_be_loaded_under_the_same_name(
    folder: PolicyFolder, name: str, file: str
) -> None:
    assert folder.write(name, TEXT, replace=False) == file
    assert folder.names() == [file]
    assert folder.read(name) == folder.read(file) == TEXT.encode()
    assert folder.load(name) == folder.load(file) != Policy()
    assert folder.write(file, TEXT, replace=False) == file, "a suffix grew"


@given(st.text(max_size=40))
def test_whatever_is_written_lands_in_the_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    top = tmp_path_factory.mktemp("top")
    folder = PolicyFolder(top / "policies")
    try:
        written = folder.write(name, TEXT, replace=False)
    except PolicyError:
        assert not [p for p in top.rglob("*") if p.is_file()]
        return
    assert folder.names() == [written]
    assert folder.read(name) == TEXT.encode()
    assert [p.relative_to(top).parts for p in top.rglob("*") if p.is_file()] == [("policies", written)]


@needs_links
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


def test_other_files_are_not_listed_and_every_policy_file_is(folder: PolicyFolder) -> None:
    folder.root.mkdir()
    policies = ["a.offload.yml", "b.offload.json", "policy.JSON", "policy.offload (1).yaml", "é 策略.yaml"]
    for name in (
        *policies,
        "notes.txt",
        ".part",
        ".hidden.yaml",
        "a.yaml.bak",
        "a.offload.yaml~",
        "nul.yaml",
    ):
        (folder.root / name).write_text("{}")
    (folder.root / "dir.offload.yaml").mkdir()
    assert folder.names() == policies
    for name in policies:
        assert folder.load(name) == Policy()
    with pytest.raises(PolicyError, match="there is no policy file"):
        folder.read("dir.offload.yaml")


@needs_links
def test_a_link_that_loops_is_no_file_and_spoils_no_other(folder: PolicyFolder) -> None:
    folder.write("a", TEXT, replace=False)
    for name in ("loop.offload.yaml", DEFAULT_FILE):
        (folder.root / name).symlink_to(name)
    assert folder.names() == [f"a{SUFFIX}"]
    assert folder.user_default() == Policy()
    with pytest.raises(PolicyError, match="there is no policy file"):
        folder.read("loop")
    with pytest.raises(PolicyError, match="cannot be written: "):
        folder.write("loop", TEXT, replace=False)
    folder.write("loop", TEXT, replace=True)
    assert folder.read("loop") == TEXT.encode()


@needs_links
def test_a_folder_that_loops_holds_nothing(tmp_path: Path) -> None:
    folder = PolicyFolder(tmp_path / "policies")
    folder.root.symlink_to("policies")
    assert (folder.names(), folder.user_default()) == ([], Policy())
    with pytest.raises(PolicyError, match="cannot be written: "):
        folder.write("a", TEXT, replace=False)


def test_a_folder_that_cannot_be_listed_still_gives_its_files(
    folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("default", TEXT, replace=False)
    for listing in ("listdir", "scandir"):
        monkeypatch.setattr(os, listing, _forbidden)
    assert folder.names() == []
    assert len(folder.user_default().arguments) == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_folder_that_cannot_be_entered_stops_nobody(folder: PolicyFolder) -> None:
    folder.write("default", TEXT, replace=False)
    user = os.geteuid()
    folder.root.chmod(0)
    try:
        if user == 0:  # who may read everything
            os.seteuid(65534)
        assert (folder.names(), folder.user_default()) == ([], Policy())
        with pytest.raises(PolicyError, match="there is no policy file"):
            folder.read("a")
        with pytest.raises(PolicyError, match="cannot be written: Permission denied"):
            folder.write("a", TEXT, replace=False)
    finally:
        os.seteuid(user)
        folder.root.chmod(0o700)


def test_a_file_in_the_place_of_the_folder_stops_nobody(folder: PolicyFolder) -> None:
    folder.root.write_text("")
    assert (folder.names(), folder.user_default()) == ([], Policy())
    with pytest.raises(PolicyError, match="cannot be written: "):
        folder.write("a", TEXT, replace=False)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_a_saved_file_has_the_permissions_of_any_new_file(folder: PolicyFolder, mask: int) -> None:
    before = os.umask(mask)
    try:
        for replace in (False, True):
            folder.write("a", f"mode: {'auto' if replace else 'speed'}\n", replace=replace)
            assert stat.S_IMODE((folder.root / f"a{SUFFIX}").stat().st_mode) == 0o666 & ~mask
    finally:
        os.umask(before)


@pytest.mark.parametrize("links", [True, False])
def test_of_many_that_save_one_name_at_once_one_wins_and_the_others_are_told(
    folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:  # as on FAT and many network drives
        monkeypatch.setattr(os, "link", _forbidden)
    folder.root.mkdir()
    start = threading.Barrier(8)
    texts = [f"vram_budget: {i}GB\n" + "# long\n" * 2000 for i in range(8)]

    def save(text: str) -> str | None:
        start.wait()
        try:
            folder.write("a", text, replace=False)
        except PolicyError as error:
            return None if "is there already" in str(error) else str(error)
        return text

    with ThreadPoolExecutor(8) as pool:
        for _ in range(30):
            saved = [text for text in pool.map(save, texts) if text]
            assert [text.encode() for text in saved] == [folder.read("a")]
            assert [p.name for p in folder.root.iterdir()] == [f"a{SUFFIX}"]
            (folder.root / f"a{SUFFIX}").unlink()


def test_what_is_replaced_is_old_or_new_and_never_half(folder: PolicyFolder) -> None:
    texts = {f"vram_budget: {i}GB\n" + "# long\n" * 2000 for i in range(4)}
    folder.write("a", min(texts), replace=False)
    with ThreadPoolExecutor(4) as pool:
        saves = [pool.submit(folder.write, "a", text, replace=True) for text in texts for _ in range(20)]
        while not all(save.done() for save in saves):
            assert folder.read("a").decode() in texts
        assert {save.result() for save in saves} == {f"a{SUFFIX}"}
    assert [p.name for p in folder.root.iterdir()] == [f"a{SUFFIX}"]


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("refused", ["replace", "link", "write"])
def test_what_the_system_refuses_is_told_and_leaves_nothing(
    folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch, refused: str, replace: bool
) -> None:
    folder.write("a", TEXT, replace=False)
    if refused == "write":
        monkeypatch.setattr(Path, "open", _full)
        monkeypatch.setattr("builtins.open", _full)
    else:
        for publish in ("replace", "link", "rename"):
            monkeypatch.setattr(os, publish, _full)
    with pytest.raises(PolicyError, match="cannot be written: No space left on device"):
        folder.write("b", TEXT, replace=replace)
    with pytest.raises(PolicyError, match="cannot be written: No space left on device"):
        folder.write("a", "mode: memory\n", replace=True)
    assert os.listdir(folder.root) == [f"a{SUFFIX}"]
    monkeypatch.undo()
    assert folder.read("a") == TEXT.encode()


def test_a_file_that_cannot_be_read_is_told(folder: PolicyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("a", TEXT, replace=False)
    monkeypatch.setattr(Path, "open", _full)
    with pytest.raises(PolicyError, match="cannot be read: No space left on device"):
        folder.read(f"a{SUFFIX}")


def _forbidden(*_: object, **__: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def _full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")
