"""Checkpoint folders as trainers write them: which of their entries the next machine gets.

tests/evidence/trainers.tsv has what each does in its folder, a step of a minute each: `name` writes
it (one that ends in / is a folder), `old > new` renames, `link -> target` links, `-name` removes;
what ` & ` joins happens within a second.
"""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotkeeper_worker.checkpoints import latest, publish
from spotkeeper_worker.job.entries import Entries, look_at
from tests.builders import evidence
from tests.worker.test_job_commits import Objects, keeper_of


class Folder:
    """A checkpoint folder, what the bucket gets of it, and its time."""

    def __init__(self, path: Path, **state: Any) -> None:
        self.path, self.now, self.commits = path, 0.0, list[str]()
        path.mkdir(exist_ok=True)
        self.keeper = keeper_of(Objects())
        self.keeper.claim()
        state = {"complete": None, "entries": (), **state}
        self.entries = Entries(path, state["complete"], state["entries"])

    def do(self, order: str) -> None:
        """Take one step of a trainer, and look for a minute."""
        first, *more = order.split(" & ")
        self._do(first)
        for each in more:
            self.now += 0.1
            self._do(each)
        self.look()

    def _do(self, order: str) -> None:
        old, _, new = order.partition(" > ")
        link, _, target = order.partition(" -> ")
        if order[0] == "-":
            shutil.rmtree(self.path / order[1:])
        elif target:
            (self.path / link).symlink_to(target)
        elif new:
            (self.path / old).rename(self.path / new)
        else:
            file = self.path / (f"{order}model.bin" if order[-1] == "/" else order)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{order} at {self.now}")
            at = 1_700_000_000 * 10**9 + int(self.now * 1e9)
            os.utime(file, ns=(at, at))

    def look(self, **ended: bool) -> None:
        for _ in range(20):
            self.now += 3.0
            entry = self.entries.look(self.now, **ended)
            if entry and self.keeper.commit(entry):
                self.entries.committed = entry
                self.commits.append(entry.name)


@pytest.mark.parametrize("row", evidence("trainers"), ids=lambda row: row["trainer"])
def test_the_next_machine_gets_what_the_trainer_would_continue_from(
    tmp_path: Path, row: dict[str, str]
) -> None:
    """What is not committed is named with the reason."""
    folder = Folder(tmp_path / "a", **json.loads(row["state"] or "{}"))
    for step in row["steps"].split("; "):
        folder.do(step)
    if row["ignored"]:
        folder.look()
        reasons, ignored = json.loads(row["ignored"]), folder.entries.ignored
        found = {name: reasons[name] in reason for name, reason in ignored.items()}
        assert found == dict.fromkeys(reasons, True)
        return
    wanted = row["commits"].split()
    assert folder.commits == wanted
    loaded, wrong = folder.keeper.load(tmp_path / "b")
    assert (loaded and loaded.name, wrong) == (wanted[-1], "")
    # At the end of the command nothing else replaces it, either.
    folder.look(ended_well=True)
    assert folder.commits == wanted


def test_a_checkpoint_that_is_soon_replaced_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for step in range(4):
        (tmp_path / f"step_{step}.pt").write_text("x")
        (tmp_path / "last.pt").write_text("x" * step)
        folder.entries.look(3.0 * step)
        (tmp_path / f"step_{step}.pt").unlink()
    assert folder.entries.ignored["last.pt"] == "it changed before it was 5 s old"
    (tmp_path / "last.pt").unlink()
    folder.entries.look(12.0)
    assert folder.entries.ignored["step_3.pt"] == "it was gone before it was 5 s old"
    folder.do("step_9.pt")
    assert (folder.commits, folder.entries.ignored) == (["step_9.pt"], {})


def test_what_publish_made_counts_whatever_its_name(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for step in (9, 10, "final"):
        with publish(step, tmp_path) as draft:
            (draft / "model").write_text(str(step))
        folder.look()
    assert folder.commits == ["000009", "000010", "final"]
    assert (latest(tmp_path) or SimpleNamespace(name="")).name == "final"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("latest", "-> epoch_9", "epoch_9"),
        ("last.ckpt", "-> epoch_8", "epoch_9"),
        ("best.ckpt", "-> epoch_8", None),
        ("latest", "-> /tmp", None),
        # DeepSpeed, DINOv2, mmengine, TensorFlow.
        ("latest", "epoch_8\n", "epoch_9"),
        ("last_checkpoint.rank_0", "epoch_8", "epoch_9"),
        ("last_checkpoint", "{folder}/epoch_9", "{folder}/epoch_9"),
        ("checkpoint", 'model_checkpoint_path: "epoch_9"', None),
        # nanotron, Megatron, verl.
        ("latest.txt", "epoch_8", "epoch_9"),
        ("latest_checkpointed_iteration.txt", "8", "9"),
        # Megatron-Bridge: a copy of a file in the checkpoint.
        ("latest_train_state.pt", "epoch_9/ at 60.0", "epoch_9/ at 60.0"),
        ("latest_train_state.pt", "epoch_8/ at 0.0", None),
    ],
)
def test_what_names_the_newest_checkpoint_is_there_on_the_next_machine(
    tmp_path: Path, name: str, text: str, expected: str | None
) -> None:
    folder, there = Folder(tmp_path / "a"), tmp_path / "b"
    folder.do("epoch_8/")
    if text.startswith("-> "):
        folder.do(f"{name} {text}")
    else:
        (tmp_path / "a" / name).write_text(text.format(folder=tmp_path / "a"))
    folder.do("epoch_9/")
    again = keeper_of(folder.keeper.store, generation=2)
    again.claim()
    again.load(there)
    pointer = there / name
    seen = pointer.read_text() if pointer.is_file() else None
    if pointer.is_symlink():
        seen = str(pointer.readlink())
    assert seen == (expected and expected.format(folder=there))


@pytest.mark.parametrize(
    ("name", "beside", "expected"),
    [
        # Lightning's ckpt_path="last", open_clip's --save-most-recent, fairseq, timm and NeMo start
        # from nothing where it is not there.
        ("epoch=1-step=18.ckpt", "last.ckpt", True),
        ("epoch_9.pt", "epoch_latest.pt", True),
        ("checkpoint9.pt", "checkpoint_last.pt", True),
        ("checkpoint-9.pth.tar", "last.pth.tar", True),
        ("m-step=18.ckpt", "m-step=9-last.ckpt", True),
        ("m-step=18/weights", "m-step=9-last/weights", True),
        ("m-step=18/weights", "m-step=9-last/hparams", False),
        # CycleGAN: another network of the same size.
        ("9_net_G_A.pth", "latest_net_G_B.pth", False),
    ],
)
def test_a_last_one_beside_the_newest_is_a_copy_of_the_loaded_one(
    tmp_path: Path, name: str, beside: str, expected: bool
) -> None:
    folder, there = Folder(tmp_path / "a"), tmp_path / "b"
    for path, text in ((beside, "x" * 100), (name, "y" * 104)):
        (tmp_path / "a" / path).parent.mkdir(exist_ok=True)
        (tmp_path / "a" / path).write_text(text)
    entry = look_at(tmp_path / "a" / name.partition("/")[0])
    assert entry and folder.keeper.commit(entry)
    folder.keeper.load(there)
    assert (there / beside).exists() == expected
    assert not expected or (there / beside).read_text() == "y" * 104


def test_what_a_link_in_a_checkpoint_leads_to_is_a_part_of_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "a", complete="done")
    for order in ("5/step5/model.bin", "5/latest -> step5", "5/last.bin -> step5/model.bin"):
        folder.do(order)
    folder.do("5/done")
    folder.keeper.load(tmp_path / "b")
    found = {path: (tmp_path / path / "5/latest/model.bin").read_text() for path in "ab"}
    assert found["a"] == found["b"] == (tmp_path / "b/5/last.bin").read_text()
    with publish(6, tmp_path / "a") as draft:
        (draft / "data").symlink_to("/etc")
    folder.keeper.rescue(tmp_path / "a")
    assert folder.keeper.head.step == "5"
