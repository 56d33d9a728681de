"""A release has one version and one date, and its list of changes fits on a page."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path

import npformer

ROOT = Path(__file__).parent.parent
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
RELEASES = re.split("^## ", CHANGES, flags=re.MULTILINE)[1:]


def test_the_newest_release_is_the_package_s_version() -> None:
    assert RELEASES[0].split()[0] == npformer.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "npformer/version.py"


def test_releases_have_dates_the_newest_first() -> None:
    headings = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) \((\d{4}-\d\d-\d\d)\)", each.splitlines()[0]) for each in RELEASES]
    assert all(headings), [each.splitlines()[0] for each in RELEASES]
    versions = [tuple(map(int, each.groups()[:3])) for each in headings if each]
    dates = [datetime.date.fromisoformat(each[4]) for each in headings if each]
    assert versions == sorted(set(versions), reverse=True)
    assert dates == sorted(dates, reverse=True)


def test_changes_are_grouped_by_kind_and_are_short() -> None:
    for release in RELEASES[:-1]:  # the oldest release lists everything, so it is exempt
        assert re.findall("^### (.+)$", release, flags=re.MULTILINE) == ["Added", "Changed", "Fixed"]
        assert len(release.split()) < 1000
