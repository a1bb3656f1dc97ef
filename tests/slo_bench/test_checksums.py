from __future__ import annotations

from pathlib import Path

from slo_bench.checksums import PIECE_BYTES, checksum, file_checksum, folder_checksum


def test_a_small_file_is_hashed_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert checksum(path) == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert checksum(tmp_path / "none") is None


def test_of_a_large_file_pieces_are_read_and_its_sum_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a"
    content = bytearray(3 * PIECE_BYTES)
    path.write_bytes(content)
    before = file_checksum(path, whole_bytes=1000)
    assert before is not None
    assert before.startswith("sampled-sha256:")
    for changed in (0, len(content) - 1):
        content[changed] = 1
        path.write_bytes(content)
        assert file_checksum(path, whole_bytes=1000) != before
        content[changed] = 0
    path.write_bytes(content + b"\0")
    assert file_checksum(path, whole_bytes=1000) != before


def test_a_folders_sum_tells_names_and_content_and_not_when_they_were_written(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "inner" / "weights").write_text("1")
        (tmp_path / name / ".cache").write_text(name)
    assert checksum(tmp_path / "one") == checksum(tmp_path / "two")
    (tmp_path / "two" / "inner" / "weights").rename(tmp_path / "two" / "inner" / "other")
    assert checksum(tmp_path / "one") != checksum(tmp_path / "two")
    assert folder_checksum(tmp_path / "one", "*.json") == folder_checksum(tmp_path / "two", "*.json")
    assert folder_checksum(tmp_path / "none") is None
