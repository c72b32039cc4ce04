"""Rows of a table of PostgreSQL, in a transaction that cannot write.

Vectors are in columns of pgvector (vector, halfvec), arrays of numbers, or texts such as "[0.1, 0.2]". The server draws
the rows, in one snapshot, and they arrive in pieces.
"""

from collections.abc import Iterator
from typing import Any

from mm_ldlm.core import SourceError, mask, reason_of
from mm_ldlm.extras.audit.config import AuditConfig
from mm_ldlm.extras.audit.items import Item, Opened, columns_of, library

PLAIN_KEYS = ("smallint", "integer", "bigint", "uuid")
"""Types of a primary key that names the rows without being asked for; another one may contain a person's data"""
PIECE = 500
"""Rows that arrive together"""
TIMEOUT = 10
"""Seconds in which the server has to answer the connection"""
ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""A network that was lost is noticed after a minute, and not after hours"""
_COLUMNS = """
select a.attname, format_type(a.atttypid, null), a.attrelid::regclass::text,
  coalesce(a.attnum = any(i.indkey) and i.indnkeyatts = 1, false)
from pg_attribute a left join pg_index i on i.indrelid = a.attrelid and i.indisprimary
where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped order by a.attnum
"""


def opened(config: AuditConfig, *, seed: int, most: int) -> Opened:
    """Open a table; about `most` of its rows are drawn, or all if there are fewer.

    Raises:
        SourceError: the server or the table cannot be read; later also from the rows.
    """
    psycopg = library("psycopg", config)
    from psycopg import sql

    address, table = config.vectors or "", config.table or ""
    try:
        connection = psycopg.connect(address, connect_timeout=TIMEOUT, application_name="mm-ldlm audit", **ALIVE)
        connection.read_only = True
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        found = connection.execute(_COLUMNS, [table]).fetchall()
        kinds = {name: kind for name, kind, _, _ in found}
        if not kinds:
            raise SourceError(
                f"{mask(address)}: expected a table '{table}' that this role can see, found none. Correct "
                "'audit.table'; a table outside the search path needs its schema (SCHEMA.TABLE)."
            )
        keys = [name for name, kind, _, is_key in found if is_key and kind in PLAIN_KEYS]
        id_column = config.id_column or (keys[0] if keys else None)
        columns_of(config, kinds, key=id_column)
        relation = sql.SQL(found[0][2])  # quoted by the server
        query = _query(config, id_column, kinds, relation)
        rows: int = connection.execute(sql.SQL("select count(*) from {}").format(relation)).fetchall()[0][0]
    except psycopg.Error as error:
        raise _refusal(config, error) from None
    return Opened(_rows(connection, query, config, fraction=min(1.0, most / max(rows, 1)), seed=seed), rows)


def _query(config: AuditConfig, id_column: str | None, kinds: dict[str, str], relation: Any) -> Any:
    """Compose the query; the vectors of pgvector become arrays."""
    from psycopg import sql

    pgvector = kinds[config.vector_column].rpartition(".")[2] in ("vector", "halfvec")
    return sql.SQL("select {}, {}, {}{} from {} where random() < %s").format(
        sql.SQL("null") if id_column is None else sql.Identifier(id_column),
        sql.Identifier(config.text_column), sql.Identifier(config.vector_column),
        sql.SQL("::real[]" if pgvector else ""), relation,
    )  # fmt: skip


def _rows(connection: Any, query: Any, config: AuditConfig, *, fraction: float, seed: int) -> Iterator[Item]:
    """Yield the drawn rows, and close the connection after them."""
    import psycopg

    count = 0
    try:
        with connection:
            connection.execute("select setseed(%s)", [seed % 1_000_003 / 1_000_003])
            with connection.cursor(name="audit") as cursor:
                cursor.itersize = PIECE
                for row in cursor.execute(query, [fraction if fraction < 1 else 2.0]):
                    count += 1
                    yield Item(*row)
    except psycopg.Error as error:
        raise _refusal(config, error, after=count) from None
    finally:
        connection.close()


def _refusal(config: AuditConfig, error: Exception, *, after: int = 0) -> SourceError:
    """Return the message of an error of the server or of the connection."""
    place = f"{mask(config.vectors or '')}{f', table {config.table}' if config.table else ''}"
    read = f" after {after:,} rows" if after else ""
    return SourceError(
        f"{place}: expected a PostgreSQL server whose table this role can read, found an error{read} "
        f"({mask(reason_of(error))}). Correct the address, the rights of the role (GRANT SELECT) or the network, then "
        "run the same command: nothing was written, and the same rows are drawn."
    )
