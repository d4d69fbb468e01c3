"""The demo of several regions: a page with a chart for each."""

from pathlib import Path

from typer.testing import CliRunner

from spotkeeper_cli.main import app


def test_a_few_hours_of_two_regions_are_a_page(tmp_path: Path) -> None:
    line = ["demo", "--regions", "2", "--hours", "2", "--seed", "3", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, result.output
    assert "served 100.00%" in " ".join(result.output.split())
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "us-west-2" in page
    assert "us-east-1" in page
