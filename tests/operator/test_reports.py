"""What commands draw and where they write it: a page that needs nothing else, and no accidents."""

import re
from pathlib import Path

from tests.functions.conftest import Stage
from tests.operator.command import answered, refused


def data_of(path: Path) -> str:
    """A page's text; it may ask for nothing from elsewhere."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", text)
    return text


def test_explain_draws_the_timeline_of_the_records(deployed: Stage, tmp_path: Path) -> None:
    del deployed
    path = tmp_path / "new" / "why.html"
    out = answered("explain", "--since", "1h", "--report", str(path))
    page = data_of(path)
    for words in ("Fleet", "Load", "Wait", "spot wanted", "make before break", "[backfill]"):
        assert words in page, words
    assert out == answered("explain", "--since", "1h")


def test_a_place_that_cannot_be_written_is_told_before_aws_is_asked(
    tmp_path: Path, calls: list[str]
) -> None:
    in_a_file = tmp_path / "file"
    in_a_file.touch()
    for command in ("explain", "cost", "drill main"):
        line = command.split()
        assert "is a folder; name a file in it" in refused(*line, "--report", str(tmp_path))
        told = refused(*line, "--report", str(in_a_file / "page.html"))
        assert "cannot make its folder" in told
        nowhere = "/no-such-folder-at-the-root/page.html"
        assert "there is no folder /no-such-folder-at-the-root" in refused(
            *line, "--report", nowhere
        )
    assert calls == []
