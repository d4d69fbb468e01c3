"""However a lab ends, it leaves no process: neither the endpoint nor one of a function."""

import json
import os
import signal
from pathlib import Path

import pytest

from spotkeeper_lab.run.up import Lab, LabSettings, running
from tests.endpoint.conftest import checkout_at, create_function, of_session, until
from tests.ports import free_ports

SOURCE = "import os\ndef handler(event, context):\n    return os.getpid()\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return checkout_at(tmp_path)


def with_a_function(lab: Lab) -> None:
    create_function(lab, "lives", "arn:aws:iam::123456789012:role/any", SOURCE)
    process = int(json.load(lab.aws("lambda").invoke(FunctionName="lives")["Payload"]))
    assert process in of_session(lab.process.pid)


@pytest.mark.parametrize("ending", ["Ctrl-C", "SIGTERM", "the endpoint is killed"])
def test_no_process_is_left(checkout: Path, ending: str) -> None:
    settings = LabSettings(port=free_ports(1)[0], auth=False)
    started: list[Lab] = []
    with pytest.raises((KeyboardInterrupt, SystemExit)), running(settings, checkout) as lab:
        started.append(lab)
        with_a_function(lab)
        match ending:
            case "SIGTERM":
                os.kill(os.getpid(), signal.SIGTERM)
            case "the endpoint is killed":
                lab.process.kill()
        raise KeyboardInterrupt
    (lab,) = started
    until(lambda: not of_session(lab.process.pid), within_s=120, what="nothing is left")
