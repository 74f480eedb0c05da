"""An audit as data: JSON, a folder of CSV files, a folder of Parquet files; written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from profiler.report.figures import Table
from profiler.report.folder import FolderError, as_text, whole

__all__ = ["About", "FolderError", "as_json", "check_parquet", "put_csv", "put_parquet", "unformula"]

INDEX: Final = "index"
"""The file that names the others: what each table is of."""


@dataclass(frozen=True, slots=True)
class About:
    """What an audit is of; times are seconds since the epoch."""

    cluster: str
    since: float
    until: float
    pseudonyms: bool = False


def as_json(about: About, tables: Sequence[Table]) -> str:
    """One object; what is not known is null, times are ISO 8601."""
    found = {
        **_facts(about),
        "tables": {
            table.name: {
                "title": table.title,
                "note": table.note,
                "attempts": table.attempts,
                "unknown": table.unknown,
                "rows": [_row(row) for row in table.rows.to_dict("records")],
            }
            for table in tables
        },
    }
    return json.dumps(found, ensure_ascii=False, allow_nan=False)


def check_parquet() -> None:
    """Raise ModuleNotFoundError where no Parquet can be written."""
    import pyarrow  # noqa: F401


def put_csv(folder: Path, about: About, tables: Sequence[Table]) -> None:
    """A file for each table, and index.csv of all of them. Raises OSError and FolderError, and leaves nothing then.

    Texts that a spreadsheet would take for a formula have an apostrophe ahead of them.
    """

    def write(rows: pd.DataFrame, file: Path) -> None:
        unformula(rows).to_csv(file, index=False)

    with whole(folder) as fresh:
        _put(fresh, about, tables, "csv", write)


def put_parquet(folder: Path, about: About, tables: Sequence[Table], frame: pd.DataFrame) -> None:
    """The same in Parquet, and jobs.parquet: the frame that all is made of. Raises as `put_csv`."""

    def write(rows: pd.DataFrame, file: Path) -> None:
        rows.to_parquet(file, index=False)

    with whole(folder) as fresh:
        _put(fresh, about, tables, "parquet", write)
        write(frame, fresh / "jobs.parquet")


def unformula(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with texts that no spreadsheet computes."""
    made: pd.DataFrame = rows.copy()
    for column in made:
        if not pd.api.types.is_numeric_dtype(made[column]) and not _is_time(made[column]):
            made[column] = [
                as_text(value) if isinstance(value, str) else value for value in made[column].astype(object)
            ]
    return made


def _is_time(values: pd.Series) -> bool:
    return bool(pd.api.types.is_datetime64_any_dtype(values))


def _put(
    folder: Path,
    about: About,
    tables: Sequence[Table],
    kind: str,
    write: Callable[[pd.DataFrame, Path], None],
) -> None:
    facts = _facts(about)
    index = [
        (table.name, table.title, table.note, table.attempts, table.unknown, *facts.values())
        for table in tables
    ]
    columns = ["table", "title", "note", "attempts", "unknown", *facts]
    write(pd.DataFrame(index, columns=columns), folder / f"{INDEX}.{kind}")
    for table in tables:
        write(table.rows, folder / f"{table.name}.{kind}")


def _facts(about: About) -> dict[str, Any]:
    since, until = (pd.Timestamp(at, unit="s", tz="UTC").isoformat() for at in (about.since, about.until))
    return {"cluster": about.cluster, "since": since, "until": until, "pseudonyms": about.pseudonyms}


def _row(row: dict[Any, Any]) -> dict[str, Any]:
    return {str(name): _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:  # noqa: ANN401 - a cell
    if pd.isna(value):
        return None
    if isinstance(value, pd.Timestamp):
        return value.isoformat()
    return value.item() if hasattr(value, "item") else value
