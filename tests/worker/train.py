"""A training as users write them: epochs, momentum, a shuffled order; it resumes by itself.

Its weights depend on every epoch, in order, to the last bit. `HOW=publish` uses the library;
`HOW=plain` writes in place and slowly, and marks what is whole with a file `done`.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

from spotkeeper_worker.checkpoints import latest, publish

EPOCHS, HOW = int(os.environ["EPOCHS"]), os.environ["HOW"]
SLEEP_S = float(os.environ.get("SLEEP_S", "0.02"))
# The last epoch waits as long as this file is there.
HOLD = os.environ.get("HOLD", "")
ROOT = Path(os.environ["SPOTKEEPER_CHECKPOINTS"])
PARAMETERS, ROWS = 8, 100
FILLING = 40_000


def write(folder: Path, state: dict[str, object]) -> None:
    text = json.dumps(state)
    (folder / "part").mkdir(exist_ok=True)
    (folder / "state.json").write_text(text)
    if HOW == "plain":
        time.sleep(SLEEP_S)
    (folder / "part" / "filling").write_text(text[-1] * FILLING + str(state["epoch"]))


def found() -> Path | None:
    if HOW == "publish":
        return latest()
    whole = [each for each in ROOT.glob("epoch-*") if (each / "done").exists()]
    return max(whole, key=lambda each: int(each.name[6:]), default=None)


def main() -> None:
    draw = random.Random(7)
    rows = [([draw.gauss(0, 1) for _ in range(PARAMETERS)], draw.gauss(0, 1)) for _ in range(ROWS)]
    weights, speed, begin = [0.0] * PARAMETERS, [0.0] * PARAMETERS, 0
    folder = found()
    if folder:
        state = json.loads((folder / "state.json").read_text())
        begin = state["epoch"]
        weights, speed = state["weights"], state["speed"]
        kind, inner, more = state["draw"]
        draw.setstate((kind, tuple(inner), more))
        if not (folder / "part" / "filling").read_text().endswith(f"}}{begin}"):
            sys.exit("half a checkpoint")
    sys.stdout.write(f"from epoch {begin}\n")
    for epoch in range(begin + 1, EPOCHS + 1):
        order = list(range(ROWS))
        draw.shuffle(order)
        for row in order:
            given, wanted = rows[row]
            error = sum(a * b for a, b in zip(given, weights, strict=True)) - wanted
            for k in range(PARAMETERS):
                speed[k] = 0.9 * speed[k] - 0.001 * error * given[k]
                weights[k] += speed[k]
        time.sleep(SLEEP_S)
        while epoch == EPOCHS and HOLD and Path(HOLD).exists():
            time.sleep(SLEEP_S)
        kept: dict[str, object] = {
            "epoch": epoch, "weights": weights, "speed": speed,
            "draw": draw.getstate(),
        }  # fmt: skip
        if HOW == "publish":
            with publish(epoch) as place:
                write(place, kept)
        else:
            place = ROOT / f"epoch-{epoch}"
            place.mkdir(parents=True, exist_ok=True)
            write(place, kept)
            (place / "done").touch()


if __name__ == "__main__":
    main()
