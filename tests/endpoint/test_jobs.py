"""A job as a user has it: by its page, and with fewer interruptions than in `bench jobs`."""

import re
import textwrap
from functools import cache
from pathlib import Path

import pytest

from tests.endpoint import job_as_a_user as stories
from tests.endpoint.conftest import CHECKOUT, Endpoint, typed, until
from tests.endpoint.test_pages_by_their_commands import commands

pytestmark = [pytest.mark.allow_hosts(["127.0.0.1"]), pytest.mark.make_e2e]
EPOCHS = 12


@cache
def expected() -> str:
    return stories.undisturbed(EPOCHS)


@pytest.mark.parametrize(("kind", "kills"), [("checkpoints", 4), ("plain", 3), ("volume", 3)])
def test_the_weights_are_those_of_a_run_that_nobody_interrupts(kind: str, kills: int) -> None:
    stories.interrupted(kind, kills, EPOCHS, expected())


def test_a_root_is_kept_for_the_next_machine_and_the_next_job() -> None:
    stories.root_to_next_job(1, EPOCHS, expected())


def test_the_page_is_followed_on_the_local_aws(endpoint: Endpoint, tmp_path: Path) -> None:
    """Its commands, document and script as they are printed; a machine is warned meanwhile."""
    page = (CHECKOUT / "docs/jobs.md").read_text().partition("## Checkpoints or a volume")[0]
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (document,) = re.findall(r"^ +version = 1\n.*?^ +types = .*?\n", page, re.DOTALL | re.MULTILINE)
    for path in CHECKOUT.iterdir():
        (tmp_path / path.name).symlink_to(path)
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.py").write_text(textwrap.dedent(script))
    (job / "job.toml").write_text(textwrap.dedent(document))
    ec2 = endpoint.aws("ec2")
    subnets = [one["SubnetId"] for one in ec2.describe_subnets()["Subnets"]]
    group = ec2.create_security_group(GroupName="jobs", Description="out")["GroupId"]
    endpoint.aws("s3").create_bucket(Bucket="my-bucket")
    own = {"SecurityGroupIds": group, "JobSubnetIds": ",".join(subnets)}
    programs = f"{CHECKOUT}/.venv-sam/bin:{CHECKOUT}/.venv/bin"

    def run(line: str) -> str:
        folder = job if "spotkeeper job" in line else tmp_path
        done = typed(line, endpoint.environment, programs, folder)
        assert done.returncode == 0, line + done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def has_committed() -> bool:
        return "step" in run("spotkeeper job status resnet")

    for printed in commands("docs/jobs.md"):
        line = printed
        for example, mine in own.items():
            line = re.sub(rf"\b{example}=\S+", f"{example}={mine}", line)
        said = run(line)
        own |= dict(re.findall(r"\|\s+(JobLaunchTemplateId|JobRole)\s+\|\s+(\S+)\s+\|", said))
        if "job start" in line:
            until(has_committed, within_s=240, what="a commit")
            assert endpoint.order(do="job-machine", value=1).startswith("i-")
    assert (job / "result/total").read_text() == str(sum(range(41)))
    (mail,) = (one for one in endpoint.look("mails") if one["subject"] == "Job resnet: done")
    assert "interruptions: 1" in mail["message"] and "epoch 40 total 820" in mail["message"]
    run("spotkeeper job delete resnet --yes")
    for stack in ("spotkeeper", "trainer"):
        endpoint.sam("delete", "--no-prompts", "--stack-name", stack)
