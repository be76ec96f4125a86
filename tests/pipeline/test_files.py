import pytest

from pipeline.files import replaced_folder, write_atomic


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "new" / "file.json"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_is_replaced_when_the_block_ends_well(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "stale").touch()
    with replaced_folder(target) as folder:
        (folder / "fresh").touch()
        assert (target / "stale").exists()
    assert [path.name for path in target.iterdir()] == ["fresh"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_stays_as_it_was_when_the_block_fails(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").touch()
    with pytest.raises(RuntimeError), replaced_folder(target) as folder:  # noqa: PT012 - the block is what is tested
        (folder / "half").touch()
        raise RuntimeError
    assert [path.name for path in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]
