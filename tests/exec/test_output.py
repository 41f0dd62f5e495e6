"""Output in segments: offsets stay true, whatever is dropped or refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ones.exec.output import OutputWriter, read_output


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=20),
    segment=st.integers(1, 30),
    segments=st.integers(1, 4),
    offset=st.integers(-50, 300),
    limit=st.integers(1, 100),
)
def test_any_offset_reads_what_was_written_there(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: list[bytes],
    segment: int,
    segments: int,
    offset: int,
    limit: int,
) -> None:
    directory = tmp_path_factory.mktemp("out")
    writer = OutputWriter(directory, segment, segments)
    for piece in pieces:
        writer.write(piece)
    writer.close()
    whole = b"".join(pieces)
    chunk = read_output(directory, offset, limit)
    assert chunk.end == len(whole)
    assert chunk.data == whole[chunk.offset : chunk.offset + limit]
    assert len(list(directory.iterdir())) <= segments
    oldest = min((int(p.name[4:]) for p in directory.iterdir()), default=0)
    wanted = max(0, len(whole) + offset) if offset < 0 else offset
    assert chunk.offset == min(max(wanted, oldest), len(whole))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_costs_output_and_says_how_much(tmp_path: Path) -> None:
    writer = OutputWriter(tmp_path, 100, 2)
    first = tmp_path / "out.000000000000000"
    first.symlink_to("/dev/full")
    writer.write(b"lost words")
    first.unlink()
    writer.close()
    writer.write(b"again there")
    writer.close()
    text = read_output(tmp_path, 0, 1000).data
    assert text == b"\n[ones: 10 bytes of output lost: disk full]\nagain there"
