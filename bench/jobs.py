"""Jobs whose agents and machines are taken: real agents, a real training, AWS by moto.

`python -m bench jobs --kills 500` runs one job after the other, each with up to twenty kills at
instants of its own (`tests.endpoint.job_as_a_user`). Each has to end with the weights of an
undisturbed run, and to leave no process and no object.
"""

import argparse
from itertools import cycle

from rich.progress import track

from bench._figures import Figure, show
from tests.endpoint.job_as_a_user import EPOCHS, interrupted, undisturbed

KILLS, KILLS_A_JOB = 40, 20


def main() -> None:
    """Print how many jobs broke a promise, and how."""
    parser = argparse.ArgumentParser(prog="python -m bench jobs", description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    kills = parser.parse_known_args()[0].kills
    expected, wrong = undisturbed(EPOCHS), list[str]()
    kinds = cycle(("checkpoints", "plain"))
    jobs = range(0, kills, KILLS_A_JOB)
    for begun, kind in zip(track(jobs, "jobs"), kinds, strict=False):
        number = min(KILLS_A_JOB, kills - begun)
        try:
            interrupted(kind, number, EPOCHS, expected, seed=begun)
        except (AssertionError, TimeoutError) as error:
            wrong.append(f"job {begun // KILLS_A_JOB}, {kind}: {error!r}")
    figure = Figure(
        name=f"jobs that broke a promise, {kills} kills", value=len(wrong), unit="", limit=0
    )
    show("Jobs", [figure], "\n".join(["real processes on this machine", *wrong]))
