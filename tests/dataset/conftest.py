"""Fixtures for the tests of datasets: a tiny classifier, a dataset of a few rows, and a folder's files as bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import npformer
from npformer.tasks.task import Task
from tests.support import tiny

TEXTS = ["I love ice cream", "not my music", None, "", "日本 and äöü 😀", 'a "quoted", text\nof two lines']


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def classify(model: Path) -> Task:
    return npformer.pipeline("text-classification", model)


@pytest.fixture(scope="session")
def rows() -> pa.Table:
    """Returns 100 rows: numbers, texts of all kinds, and texts that look like other types."""
    count = range(100)
    odd = ["007", "1.50", "NA", "2024-01-01T00:00:00", "", " x "]
    return pa.table(
        {"id": list(count), "text": [TEXTS[i % len(TEXTS)] for i in count], "odd": [odd[i % len(odd)] for i in count]}
    )


@pytest.fixture
def source_of_500(rows: pa.Table, tmp_path: Path) -> Path:
    """Returns a folder with two files, of 400 and 100 rows."""
    (tmp_path / "in").mkdir()
    pa.parquet.write_table(pa.concat_tables([rows] * 4), tmp_path / "in" / "a.parquet")
    pa.parquet.write_table(rows, tmp_path / "in" / "b.parquet")
    return tmp_path / "in"


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
