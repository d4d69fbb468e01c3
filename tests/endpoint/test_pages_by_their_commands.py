"""Every page of docs/ can be followed on the local AWS, or says where not.

Each page's commands run in order, as they are printed, in a folder that looks like a checkout. What
stands for something of the reader's own is replaced. A command with the remark
`# not on the local AWS: ...` is left out, and so is what another test runs.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.endpoint.conftest import CHECKOUT, Endpoint, typed, until
from tests.endpoint.test_stack import document, outputs, records
from tests.worker.page import PAGES as WORKER_PAGES

# In this order: the stack is deployed first, and deleted last.
PAGES = (
    "README.md", "docs/deploy.md", "docs/troubleshooting.md", "docs/first-week.md",
    "docs/savings.md", "docs/settings.md", "docs/sizing.md", "docs/monitoring.md",
    "docs/events.md", "docs/lab.md", "docs/backtest.md", "docs/ecs.md", "docs/moving.md",
    "docs/fleet-documents.md", "docs/notify.md", "docs/hours.md", "docs/rollouts.md",
    "docs/second-fleet.md", "docs/ci.md", "docs/upgrading.md", "docs/leaving.md",
)  # fmt: skip
# Pages whose commands have tests of their own, and what is a list or a reference.
ELSEWHERE = {
    "docs/access-logs.md": "tests/worker/test_balancers.py",
    "docs/architecture.md": "a map",
    "docs/asyncio.md": "tests/worker/test_aio.py",
    "docs/commands.md": "tests/unit/test_cli.py",
    "docs/jobs.md": "tests/endpoint/test_jobs.py",
    "docs/json.md": "tests/operator/test_json.py",
    "docs/model-servers.md": "tests/worker/test_model_servers.py",
    "docs/regions.md": "tests/endpoint/test_regions.py",
    "docs/queues.md": "tests/worker/test_queues.py",
    **{f"docs/{name}.md": "tests/worker/page.py" for name in WORKER_PAGES},
}
# What needs no AWS and takes minutes, or is what this test runs in.
NOT_HERE = (
    "make ", "git ", "python3.13 -m venv", "~/.spotkeeper/", ".venv/bin/python docs/images",
    ".venv/bin/spotkeeper backtest", ".venv/bin/spotkeeper trace convert", "spotkeeper backtest",
    "for s in",
)  # fmt: skip
OWN = {
    "STACK ": "spotkeeper ",
    "--fleet ocr ": "--fleet main ",
    "spotkeeper init": "spotkeeper init --yes --file init.toml",
    "group-name SPOT ": "group-name ocr-spot ",
    "rollout main --template-version 8": "rollout main --template-version 8 --canary 0 --yes",
    "111122223333": "123456789012",
    # The AWS CLI 1 does not read AWS_ENDPOINT_URL for SQS (docs/lab.md).
    "aws sqs ": "aws sqs --endpoint-url $AWS_ENDPOINT_URL ",
}
# These say what they found by their exit code: no trouble, trouble, an error.
REPORTS = re.compile(r"spotkeeper (doctor|status|cost|types|explain|observe|sizing|fleet diff)\b")
# What these answer of a stack that is minutes old.
YOUNG = re.compile(r"^error: .*(no turn in this time has the rule|less than half an hour)", re.M)
# These go on until Ctrl-C.
ENDLESS = re.compile(r"spotkeeper (watch|status --watch|rollout main --template)\b")
# What is seen, some turns after a command.
SEEN = {"--min-size 6": "explain --since 5m", "rollout main --template": "status"}
WORDS = re.compile(r"group's MinSize is 6|instance refresh to version 8")
_COMMAND = re.compile(r"(\.?~?[\w./-]*/)?(spotkeeper|make|aws|sam|git|python[\d.]*|pip|for)\s")
# These ask at a terminal.
_ASKS = re.compile(r"(spotkeeper (?:mode \w+ act|resume \w+|stop \w+|fleet apply \S+))")
_REMARK = "# not on the local AWS: "
# What one page ran, the next need not.
RAN: set[str] = set()


def commands(page: str) -> Iterator[str]:
    """The commands of a page's indented blocks, continued lines joined."""
    text = re.sub(r"^ *```.*?^ *```$", "", (CHECKOUT / page).read_text(), flags=re.M | re.S)
    for block in re.findall(r"(?:^ {4,}\S.*\n)+", text, re.M):
        joined = re.sub(r"\\\n\s+", "", block)
        yield from (line.strip() for line in joined.splitlines() if _COMMAND.match(line.strip()))


def test_every_page_with_a_command_is_followed() -> None:
    pages = ["README.md", *(f"docs/{path.name}" for path in (CHECKOUT / "docs").glob("*.md"))]
    assert {p for p in pages if any(commands(p))} <= {*PAGES, *ELSEWHERE}
    assert all(any(commands(p)) for p in PAGES)


@pytest.fixture(scope="module")
def folder(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in a checkout, what pages tell to write, and what they say must be there."""
    found = tmp_path_factory.mktemp("follows")
    for path in CHECKOUT.iterdir():
        (found / path.name).symlink_to(path)
    second = (CHECKOUT / "docs/second-fleet.md").read_text()
    (written,) = re.findall(r'^ +(\{"version": 1,.*\n.*\}\})$', second, re.M)
    (found / "asr.json").write_text(written)
    (found / "fleets").mkdir()
    (found / "fleets/main.overrides.json").write_text(
        '{"worker_health": {"replacements_per_hour": 3}}'
    )
    shutil.copy(CHECKOUT / "samconfig.toml", found / "init.toml")
    subnet = endpoint.aws("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
    groups = {"Spot": _group("spot", subnet), "OnDemand": _group("on-demand", subnet)}
    endpoint.aws("cloudformation").create_stack(
        StackName="groups", TemplateBody=json.dumps({"Resources": groups})
    )
    endpoint.order(do="load", value=1)
    return found


def _group(kind: str, subnet: str) -> dict[str, object]:
    """A group of the second fleet, in CloudFormation's words."""
    share = 0 if kind == "spot" else 100
    policy = {
        "InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": share},
        "LaunchTemplate": {"Overrides": [{"InstanceType": "g5.xlarge"}]},
    }
    return {
        "Type": "AWS::AutoScaling::AutoScalingGroup",
        "Properties": {
            "AutoScalingGroupName": f"gpu-asr-{kind}",
            "MinSize": "0",
            "MaxSize": "8",
            "DesiredCapacity": "1" if kind == "spot" else "0",
            "MixedInstancesPolicy": policy,
            "VPCZoneIdentifier": [subnet],
        },
    }


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_followed(page: str, endpoint: Endpoint, folder: Path) -> None:
    for line in commands(page):
        if _REMARK in line or line.startswith(NOT_HERE) or line in RAN:
            continue
        RAN.add(line)
        command = _ASKS.sub(r"\1 --yes", line)
        for theirs, mine in (OWN | _of_the_stack(endpoint, command)).items():
            command = command.replace(theirs, mine)
        if "main.json" in command:
            (folder / "main.json").write_text(json.dumps(document(endpoint)))
        if "trace export" in command:
            until(lambda: _availability_turns(endpoint) > 1, within_s=150, what="two turns")
        code, told = _run(command, endpoint, folder)
        if "spotkeeper stop" in command and "--anyway" in told:
            # On-demand replaces spot: as the page says, wait until spot serves.
            again = partial(_run, command, endpoint, folder)
            code, told = until(partial(_if_done, again), within_s=300, what=command)
        fine = (0, 1, 2) if REPORTS.search(command) or "is up to date" in told else (0,)
        assert code in fine, f"{line}\n{told}"
        assert not re.search("Traceback|^error: ", YOUNG.sub("", told), re.M), f"{line}\n{told}"
        assert "not simulated" not in told or "doctor" in command, f"{line}\n{told}"
        if "sam deploy" in command:
            until(lambda: records(endpoint), within_s=150, what="a turn")
        for _, answer in (one for one in SEEN.items() if one[0] in command):
            shown = partial(_run, f"spotkeeper {answer}", endpoint, folder)
            # A roll-out waits for turns of both controllers, and goes on when it is run again.
            again = partial(_run, command if "rollout" in command else "true", endpoint, folder)
            until(partial(_if_shown, shown, again), within_s=200, what=answer)


def _availability_turns(endpoint: Endpoint) -> int:
    return sum(one["controller"] == "availability" for one in records(endpoint))


def _of_the_stack(endpoint: Endpoint, command: str) -> dict[str, str]:
    """The values of this stack for names in capitals."""
    if "_URL" not in command and "QUEUE_ARN" not in command:
        return {}
    url = outputs(endpoint)["SearchLogDeadLettersUrl"]
    asked = endpoint.aws("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    return {"SEARCH_LOG_DEAD_LETTERS_URL": url, "QUEUE_ARN ": f"{asked['Attributes']['QueueArn']} "}


def _if_shown(
    run: Callable[[], tuple[int, str]], again: Callable[[], tuple[int, str]]
) -> re.Match[str] | None:
    words = WORDS.search(" ".join(run()[1].split()))
    if words is None:
        again()
    return words


def _if_done(run: Callable[[], tuple[int, str]]) -> tuple[int, str] | None:
    code, told = run()
    return None if code else (code, told)


def _run(command: str, endpoint: Endpoint, folder: Path) -> tuple[int, str]:
    line = f"timeout -s INT 10 {command}" if ENDLESS.search(command) else command
    programs = f"{CHECKOUT}/.venv-sam/bin:{CHECKOUT}/.venv/bin"
    done = typed(line, endpoint.environment, programs, folder)
    code = 0 if ENDLESS.search(command) and done.returncode in (124, 130) else done.returncode
    return code, done.stdout[-3000:] + done.stderr[-3000:]
