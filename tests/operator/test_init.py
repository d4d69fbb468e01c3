"""`spotkeeper init`: what the account has and what is answered becomes samconfig.toml, once."""

import tomllib
from pathlib import Path

import boto3
import pytest

from spotkeeper_operator import start
from spotkeeper_operator.aws import Aws, OperatorError
from spotkeeper_operator.start import KEY, SECTION, Found, overrides_of, parameters, with_overrides
from tests.operator.command import refused, run
from tests.template.stack import ROOT, Stack

pytestmark = pytest.mark.usefixtures("deployed")


def test_groups_that_exist_are_adopted_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "samconfig.toml"
    before = (ROOT / "samconfig.toml").read_text()
    file.write_text(before)
    line = ("init", "--yes", "--file", str(file))
    code, out, _ = run(*line)
    assert (code, "sam deploy" in out, "14 USD a month" in out) == (0, True, True)
    written = file.read_text()
    given = overrides_of(written)
    groups = (given["SpotGroupName"], given["OnDemandGroupName"])
    assert groups == ("main-spot", "main-on-demand")
    assert Stack.with_parameters(given).resources("AWS::SSM::Parameter")
    assert tomllib.loads(written)["default"]["deploy"]["parameters"]["s3_prefix"] == "spotkeeper"
    assert set(before.splitlines()) < set(written.splitlines())
    assert "stays as it is" in run(*line)[1]
    assert file.read_text() == written


def test_groups_are_created_where_the_file_says_so_and_answers_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "samconfig.toml"
    file.write_text(
        "[default.deploy.parameters]\n"
        'parameter_overrides = "LaunchTemplateId=\\"lt-0123456789abcdef0\\""\n'
    )
    assert "cannot ask: give --yes" in refused("init", "--file", str(file))
    monkeypatch.setattr("spotkeeper_cli.stack_commands._asks", lambda: True)
    # No queue of a stack holds requests.
    whole = Stack.with_parameters({"Jobs": "true", "Regions": "arn:of-a-table"})
    for name, one in whole.resources("AWS::SQS::Queue").items():
        queue = one.get("QueueName", f"ocr-{name}-F35EB157650A")
        boto3.client("sqs").create_queue(QueueName=queue if "Queues" not in one else "requests")
    assert start.look(Aws()).queues == ["requests"]
    answers = {"SubnetIds": "subnet-1, subnet-2", "SpotMax": "7", "ObjectiveWaitSeconds": "-"}
    monkeypatch.setattr(
        "typer.prompt", lambda text, default, **_: answers.get(text.partition(" ")[0], default)
    )
    assert run("init", "--file", str(file))[0] == 0
    given = overrides_of(file.read_text())
    assert given.pop("SubnetIds") == "subnet-1,subnet-2"
    assert given == {
        "LaunchTemplateId": "lt-0123456789abcdef0", "LaunchTemplateVersion": "1",
        "InstanceTypes": "g5.xlarge,g6.xlarge,g5.2xlarge,g6.2xlarge",
        "SpotMax": "7", "OnDemandMax": "7",
    }  # fmt: skip
    answers["SpotMax"] = "ten"
    assert "must be numbers" in refused("init", "--file", str(file))
    for text, told in (b"[default", "samconfig.toml cannot be read"), (b"default = 3", "be read"), (
        b"# \xff", "is not UTF-8 text"
    ):  # fmt: skip
        file.write_bytes(text)
        assert told in refused("init", "--yes", "--file", str(file))
    assert "is a folder" in refused("init", "--yes", "--file", str(tmp_path))


@pytest.mark.parametrize(
    "given",
    [
        # AWS chooses the types by attributes.
        {"LaunchTemplateId": "lt-1", "LaunchTemplateVersion": "3", "SubnetIds": "s", "Gpus": "2",
         "InstanceTypes": ""},
        # The groups are of a kind that cannot be proposed, or of another account.
        {"SpotGroupName": "ours", "OnDemandGroupName": "ours-too"},
    ],
)  # fmt: skip
def test_what_a_file_says_stays(given: dict[str, str]) -> None:
    asked = {"SpotMax": "9", "OnDemandMax": "9", "ObjectiveWaitSeconds": "5"}
    found = Found(spot={}, on_demand={}, templates={"lt-9": 4}, subnets=["s9"], queues=[])
    assert parameters(found, given | asked, lambda _, __, default: default) == given | asked


@pytest.mark.parametrize("name", ["it's", "a/b.c(d)[e]", "x" * 255, "bücher \U0001f600"])
@pytest.mark.parametrize(
    "text", ["", f'{SECTION}\n{KEY} = "A=1"\n', f"{SECTION}\n{KEY} = ['A=1']\n"]
)
def test_every_name_is_read_as_it_was_written(name: str, text: str) -> None:
    given = {"SpotGroupName": name, "OnDemandGroupName": f"{name}="}
    written = with_overrides(text, given)
    assert overrides_of(written) == given
    assert with_overrides(written, given) == written


def test_a_file_that_cannot_be_changed_stays() -> None:
    odd = f'{SECTION}\n{KEY} = """\nA=1\nB=2\n"""\n'
    with pytest.raises(OperatorError, match="put this below"):
        with_overrides(odd, {"SpotMax": "3"})


def test_an_account_without_groups_and_launch_templates_is_told_so() -> None:
    found = Found(spot={}, on_demand={}, templates={}, subnets=["s9"], queues=[])
    with pytest.raises(OperatorError, match="this region has neither"):
        parameters(found, {}, lambda _, __, default: default)
    some = Found(spot={}, on_demand={}, templates={"lt-9": 4}, subnets=["s9"], queues=[])
    assert parameters(some, {}, lambda _, __, default: default)["LaunchTemplateVersion"] == "4"
