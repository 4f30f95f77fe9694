"""The demo's input: every kind of file becomes whole Parquet pieces with all its rows."""

from __future__ import annotations

import datetime
import gzip
import io
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_replog.cli.demo import PIECE_ROWS, flights_file, write_pieces
from spark_replog.errors import ReplogError

CSV = "carrier,delay\nUA,1\nAA,\nDL,-3\n"


def rows_of(pieces, folder):
    files = [folder / f"part-{number}.parquet" for number in range(pieces.count)]
    assert set(folder.iterdir()) == set(files)
    return pa.concat_tables([pq.read_table(file) for file in files])


def test_flights_are_all_there(tmp_path):
    pieces = write_pieces(flights_file(), tmp_path / "in")
    assert (pieces.row_count, pieces.count) == (336_776, 17)
    assert "carrier" in pieces.columns
    table = rows_of(pieces, tmp_path / "in")
    assert table.num_rows == 336_776
    assert table.column("time_hour").type == pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "csv.zip", "jsonl", "parquet"])
def test_kinds(tmp_path, kind):
    source = tmp_path / f"data.{kind}"
    if kind == "csv":
        source.write_text(CSV)
    elif kind == "csv.gz":
        source.write_bytes(gzip.compress(CSV.encode()))
    elif kind == "csv.zip":
        with zipfile.ZipFile(source, "w") as archive:
            archive.writestr("data.csv", CSV)
    elif kind == "jsonl":
        source.write_text('{"carrier":"UA","delay":1}\n{"carrier":"AA"}\n{"carrier":"DL","delay":-3}\n')
    else:
        pq.write_table(pa.table({"carrier": ["UA", "AA", "DL"], "delay": [1, None, -3]}), source)
    table = rows_of(write_pieces(source, tmp_path / "in"), tmp_path / "in")
    assert table.to_pydict() == {"carrier": ["UA", "AA", "DL"], "delay": [1, None, -3]}


def test_a_quoted_csv_value_may_hold_line_ends(tmp_path):
    value = "first, line\nsecond\n"
    row_count = (2 << 20) // len(value)  # the reader cuts the file into blocks of 1 MiB
    (tmp_path / "data.csv").write_text("carrier,text\n" + f'UA,"{value}"\n' * row_count)
    table = rows_of(write_pieces(tmp_path / "data.csv", tmp_path / "in"), tmp_path / "in")
    assert table.column("text").to_pylist() == [value] * row_count


def test_pieces_are_cut_at_the_row(tmp_path):
    count = 2 * PIECE_ROWS + 1
    pq.write_table(pa.table({"n": range(count)}), tmp_path / "n.parquet", row_group_size=7_777)
    pieces = write_pieces(tmp_path / "n.parquet", tmp_path / "in")
    assert (pieces.count, pieces.row_count) == (3, count)
    assert rows_of(pieces, tmp_path / "in").column("n").to_pylist() == list(range(count))


def test_types_that_spark_cannot_read_are_cast(tmp_path):
    table = pa.table(
        {
            "t": pa.array([datetime.time(1, 2)]),
            "d": pa.array([5], pa.duration("s")),
            "k": pa.array(["a"]).dictionary_encode(),
            "ns": pa.array([1_000_000_001], pa.timestamp("ns")),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    read = rows_of(write_pieces(tmp_path / "t.parquet", tmp_path / "in"), tmp_path / "in")
    assert read.column("t").to_pylist() == ["01:02:00.000000"]
    assert read.column("d").to_pylist() == [5]
    assert read.schema.field("k").type == pa.string()
    assert read.schema.field("ns").type == pa.timestamp("us")


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("x.txt", b"a", "unknown kind"),
        ("x.csv", b"a,b\n", "no rows"),
        ("x.csv", b"", "cannot be read"),
        ("x.parquet", b"PAR1 not really", "cannot be read"),
        ("x.jsonl", b"{broken", "cannot be read"),
        ("x.csv.zip", b"no archive", "cannot be read"),
        ("x.csv", b"a,b,A\n1,2,3\n", "takes for one: a, A. Rename"),
    ],
)
def test_bad_files(tmp_path, name, body, said):
    (tmp_path / name).write_bytes(body)
    with pytest.raises(ReplogError, match=said) as refused:
        write_pieces(tmp_path / name, tmp_path / "in")
    assert refused.value.code.name == "REPLOG_INPUT"


def test_missing_file(tmp_path):
    with pytest.raises(ReplogError, match="is not a file"):
        write_pieces(tmp_path / "no.csv", tmp_path / "in")


def test_archive_of_two(tmp_path):
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        archive.writestr("a", "x")
        archive.writestr("b", "x")
    (tmp_path / "x.csv.zip").write_bytes(body.getvalue())
    with pytest.raises(ReplogError, match="holds 2 files"):
        write_pieces(tmp_path / "x.csv.zip", tmp_path / "in")
