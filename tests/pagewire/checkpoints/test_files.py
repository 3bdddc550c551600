"""Files of a checkpoint, which may be anything: what is read of them, and what is refused."""

import os
from pathlib import Path

import pytest

from pagewire.checkpoints import files
from pagewire.checkpoints.files import inside, read_object, read_whole
from pagewire.errors import StartupError

WHAT = "cannot do it"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty one, beside a file that is none of its own."""
    (tmp_path / "secret").write_text("x")
    made = tmp_path / "model"
    made.mkdir()
    return made


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """One of the Hugging Face cache, whose files are links to blobs."""
    made = tmp_path / "models--org--name" / "snapshots" / "0123"
    made.mkdir(parents=True)
    (made.parent.parent / "blobs").mkdir()
    (made.parent.parent / "blobs" / "cafe").write_text('{"a": 1}')
    return made


def test_a_file_of_the_folder(folder: Path):
    """Whether it is there or not; also below, and by way of a link that stays within."""
    assert inside(folder, "config.json", WHAT) == folder / "config.json"
    (folder / "part").mkdir()
    (folder / "part" / "a.json").write_text("{}")
    (folder / "link.json").symlink_to("part/a.json")
    assert inside(folder, "part/a.json", WHAT) == inside(folder, "link.json", WHAT)
    assert inside(folder, "part/../b.json", WHAT) == folder / "b.json"


@pytest.mark.parametrize("name", ["../secret", "../model/../secret", "part/../../secret", "/etc/hostname"])
def test_a_name_that_leads_out(name: str, folder: Path):
    with pytest.raises(StartupError, match="is outside the folder of the checkpoint") as refused:
        inside(folder, name, WHAT)
    assert refused.value.what == WHAT and repr(name) in refused.value.why


def test_an_absolute_name_of_the_folder_is_refused_too(folder: Path):
    """An index that holds one belongs to another machine."""
    with pytest.raises(StartupError, match="is outside"):
        inside(folder, str(folder / "config.json"), WHAT)


def test_a_link_that_leads_out(folder: Path):
    (folder / "config.json").symlink_to("../secret")
    with pytest.raises(StartupError, match="is outside"):
        read_whole(folder, "config.json", WHAT)


def test_a_folder_that_is_a_link_itself(folder: Path, tmp_path: Path):
    """What counts is where it leads to."""
    (folder / "config.json").write_text("{}")
    (tmp_path / "other").symlink_to("model")
    assert inside(tmp_path / "other", "config.json", WHAT) == folder / "config.json"


@pytest.mark.parametrize("kind", ["folder", "FIFO", "null byte", "loop"])
def test_what_is_no_file(kind: str, folder: Path):
    name = "config.json"
    if kind == "folder":
        (folder / name).mkdir()
    elif kind == "FIFO":
        os.mkfifo(folder / name)
    elif kind == "loop":
        (folder / name).symlink_to(name)
    else:
        name = "config\0.json"
    with pytest.raises(StartupError, match="is not a file|cannot be read"):
        read_whole(folder, name, WHAT)


def test_links_of_the_hugging_face_cache(snapshot: Path):
    (snapshot / "config.json").symlink_to("../../blobs/cafe")
    assert read_object(snapshot, "config.json", WHAT) == {"a": 1}


def test_links_to_other_snapshots_and_to_folders_beside_blobs(snapshot: Path):
    """Blobs are all that the cache shares; and only a snapshot may lead there."""
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("0123")
    (snapshot / "config.json").symlink_to("../../refs/main")
    with pytest.raises(StartupError, match="is outside"):
        inside(snapshot, "config.json", WHAT)
    plain = snapshot.parent.parent / "other" / "4567"
    plain.mkdir(parents=True)
    (plain / "config.json").symlink_to("../../blobs/cafe")
    with pytest.raises(StartupError, match="is outside"):
        inside(plain, "config.json", WHAT)


def test_a_file_that_is_not_there_is_none(folder: Path):
    assert read_whole(folder, "config.json", WHAT) is None
    assert read_object(folder, "config.json", WHAT) is None
    (folder / "dangling").symlink_to("gone")
    assert read_whole(folder, "dangling", WHAT) is None


def test_a_file_of_another_size_than_it_may_have(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The last size that is read, and the next one; its content is not looked at."""
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 5)
    (folder / "a").write_bytes(b"12345")
    assert read_whole(folder, "a", WHAT) == b"12345"
    (folder / "a").write_bytes(b"123456")
    with pytest.raises(StartupError, match="a has 6 bytes, more than 5"):
        read_whole(folder, "a", WHAT)


COUNTED = {
    '["a", "b", "c"]': 2,
    '[["a", "b"], ["c", "d"]]': 1,
    '[["a", -1.5], ["b,,,{", -2.0]]': 1,
    r'["\\", "\",\"", "\\\",[", {}]': 3 + 3,
    '{"a": 1, "b": {"x": [], "y": [[[]]]}}': 2 + 6,
    "[[], [], [], []]": 3,
}


@pytest.mark.parametrize("content", COUNTED)
def test_a_file_of_more_values_than_it_may_have(
    content: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in strings is none; a pair is one. The last number that is read, and the next one."""
    count = COUNTED[content]
    (folder / "a").write_text(content)
    monkeypatch.setattr(files, "MAX_VALUES", count)
    assert read_whole(folder, "a", WHAT) == content.encode()
    monkeypatch.setattr(files, "MAX_VALUES", count - 1)
    with pytest.raises(StartupError, match=f"a has {count} values, more than {count - 1}"):
        read_whole(folder, "a", WHAT)


def test_a_file_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "a").write_text("{}")

    def fail(self: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(StartupError, match="a cannot be read: Input/output error"):
        read_whole(folder, "a", WHAT)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is not readable JSON"),
        (b"{", "is not readable JSON"),
        (b'{"a": "\xff"}', "is not readable JSON"),
        (b"[" * 200_000, "is not readable JSON"),
        (b"[]", "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b"3", "is not a JSON object"),
    ],
    ids=["empty", "half", "no UTF-8", "nested", "list", "null", "number"],
)
def test_what_is_no_object(content: bytes, why: str, folder: Path):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(StartupError, match=f"config.json {why}"):
        read_object(folder, "config.json", WHAT)
