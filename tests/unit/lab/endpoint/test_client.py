from pathlib import Path
from typing import Any

import pytest

from spotkeeper_lab.endpoint.seams import release
from spotkeeper_lab.endpoint.story import LabClient
from spotkeeper_lab.endpoint.up import LabError


class Stacks:
    """CloudFormation with one stack of a status."""

    def __init__(self, status: str) -> None:
        self._status = status

    def describe_stacks(self) -> dict[str, Any]:
        return {"Stacks": [{"StackName": "spotkeeper", "StackStatus": self._status}]}


def client(checkout: Path, status: str, monkeypatch: pytest.MonkeyPatch) -> LabClient:
    monkeypatch.setattr(LabClient, "aws", lambda *_: Stacks(status))
    return LabClient(4566, checkout)


@pytest.mark.parametrize("status", ["ROLLBACK_COMPLETE", "DELETE_FAILED"])
def test_a_stack_that_failed_half_way_is_named_with_the_way_out(
    tmp_path: Path, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LabError, match=f"spotkeeper is {status}: sam delete it"):
        client(tmp_path, status, monkeypatch).deploy({})


def test_without_a_build_nothing_is_deployed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LabError, match="make local-build"):
        client(tmp_path, "CREATE_COMPLETE", monkeypatch).deploy({})


def test_another_release_is_refused_and_both_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "version", lambda _: "9.9.9")
    with pytest.raises(release.SeamError, match=f"9.9.9 is installed and {release.MINISTACK}"):
        release.check_release()
