"""Checkpoint folders as trainers write them: which of their entries the next machine gets.

Each story is what a trainer does in its folder, a step of a minute each: `name` writes it (a name
that ends in / is a folder), `old > new` renames, `link -> target` links, `-name` removes.
"""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotkeeper_worker.checkpoints import latest, publish
from spotkeeper_worker.job.entries import Entries
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
            at = int(1_700_000_000 + self.now) * 10**9
            os.utime(file, ns=(at, at))
        self.look()

    def look(self, **ended: bool) -> None:
        for _ in range(20):
            self.now += 3.0
            entry = self.entries.look(self.now, **ended)
            if entry and self.keeper.commit(entry):
                self.entries.committed = entry
                self.commits.append(entry.name)


HF = "checkpoint-500/ checkpoint-1000/"
STORIES = {
    "transformers": (
        {}, "config.json runs/ checkpoint-500/ runs/ checkpoint-1000/ runs/ trainer_state.json"
            " model.safetensors training_args.bin model-00001-of-00002.safetensors README.md",
        HF,
    ),
    "transformers, by its state": (
        {"complete": "trainer_state.json"},
        "checkpoint-500/trainer_state.json trainer_state.json checkpoint-1000/trainer_state.json",
        HF,
    ),
    "transformers 4.36": (
        {}, "tmp-checkpoint-500/|tmp-checkpoint-500 > checkpoint-500|tmp-checkpoint-1000/"
            "|tmp-checkpoint-1000 > checkpoint-1000|-checkpoint-500",
        HF,
    ),
    "an unknown kind of draft": (
        {}, "draft-checkpoint-5/|draft-checkpoint-5 > checkpoint-5",
        "draft-checkpoint-5/ checkpoint-5",
    ),
    "a second stage counts again": (
        {}, "checkpoint-900/|-checkpoint-900|checkpoint-100/|checkpoint-200/",
        "checkpoint-900/ checkpoint-100 checkpoint-200",
    ),
    "an older one is written again": (
        {}, "checkpoint-100/ checkpoint-200/ checkpoint-100/", "checkpoint-100 checkpoint-200",
    ),
    "the best one stays": (
        {}, "checkpoint-100/|checkpoint-200/|-checkpoint-200|checkpoint-300/",
        "checkpoint-100 checkpoint-200 checkpoint-300",
    ),
    "Lightning": (
        {}, "lightning_logs/ epoch=0-step=9.ckpt last.ckpt epoch=1-step=18.ckpt last.ckpt",
        "lightning_logs epoch=0-step=9.ckpt epoch=1-step=18.ckpt",
    ),
    "Lightning's last": (
        {"entries": ["last.ckpt"]}, "last.ckpt epoch=0-step=9.ckpt last.ckpt",
        "last.ckpt last.ckpt",
    ),
    "Lightning, steps of an epoch": (
        {}, "epoch=0-step=90.ckpt epoch=1-step=8.ckpt epoch=1-step=10.ckpt",
        "epoch=0-step=90.ckpt epoch=1-step=8.ckpt epoch=1-step=10.ckpt",
    ),
    "Keras, with the loss": (
        {}, "weights.01-0.90.keras weights.02-0.31.keras weights.10-0.29.weights.h5",
        "weights.01-0.90.keras weights.02-0.31.keras",
    ),
    "Keras, one file": (
        {}, "model.weights.h5 model.weights.h5", "model.weights.h5 model.weights.h5",
    ),
    "Orbax": (
        {}, "9.orbax-checkpoint-tmp-17/|9.orbax-checkpoint-tmp-17 > 9|10.orbax-checkpoint-tmp/"
            "|10.orbax-checkpoint-tmp > 10|-9",
        "9 10",
    ),
    "DeepSpeed": (
        {}, "global_step9/ latest zero_to_fp32.py global_step10/ latest",
        "global_step9 global_step10",
    ),
    "NeMo": (
        {}, "metrics.json|m-step=9-unfinished|m-step=9.ckpt|m-step=9-unfinished > .done"
            "|m-step=10-unfinished|m-step=10.ckpt",
        "m-step=9.ckpt",
    ),
    "NeMo's last": (
        {}, "nemo_error_log.txt nemo_log_globalrank-0_localrank-0.txt m--loss=1.2-step=9.ckpt"
            " m--loss=1.2-step=9-last.ckpt m--loss=0.9-step=18.ckpt m--loss=0.9-step=18-last.ckpt",
        "m--loss=1.2-step=9.ckpt m--loss=1.2-step=9-last.ckpt m--loss=0.9-step=18-last.ckpt",
    ),
    "LLaMA-Factory, ms-swift, TRL": (
        {}, "args.json trainer_log.jsonl running_log.txt completions/ checkpoint-500/"
            " trainer_log.jsonl checkpoint-1000/ training_loss.png",
        HF,
    ),
    "Ultralytics": ({}, "train_batch0.jpg weights/ labels.jpg results.png", "weights"),
    "torchtune": (
        {}, "logs/ epoch_0/ recipe_state/ torchtune_config.yaml epoch_1/", "epoch_0 epoch_1",
    ),
    "TensorBoard beside steps": (
        {}, "events.out.tfevents.1731084143.ip-10-0-0-1.12.0 step_9.pt"
            " events.out.tfevents.1731084143.ip-10-0-0-1.12.0",
        "step_9.pt",
    ),
    "a hidden one": ({}, ".hidden a", "a"),
    "mmengine": (
        {}, "20240101_120000/ epoch_1.pth last_checkpoint epoch_2.pth 20240101_120000/",
        "20240101_120000 epoch_1.pth epoch_2.pth",
    ),
    "a link to nothing, in a checkpoint": (
        {"complete": "done"}, "5/model.bin|5/latest -> step4|5/loop -> loop|5/done", "5",
    ),
    "a link to outside, beside checkpoints": (
        {}, "best/config.json|best/model.bin -> ../step_5/model.bin|step_5/|step_6/",
        "best step_5 step_6",
    ),
    "two forms, and no setting": (
        {}, "last-05.safetensors last-05-state/ last-10.safetensors",
        "last-05.safetensors last-10.safetensors",
    ),
    "two forms that a setting names": (
        {"entries": ["pretrain-*", "tune-*"]}, "pretrain-900/ tune-100/ runs/ tune-200/",
        "pretrain-900 tune-100 tune-200",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("state", "orders", "commits"), STORIES.values(), ids=STORIES)
def test_the_next_machine_gets_what_the_trainer_would_continue_from(
    tmp_path: Path, state: dict[str, Any], orders: str, commits: str
) -> None:
    folder = Folder(tmp_path / "a", **state)
    for order in orders.split("|") if "|" in orders else orders.split():
        folder.do(order)
    wanted = commits.replace("/", "").split()
    assert folder.commits == wanted
    loaded, wrong = folder.keeper.load(tmp_path / "b")
    assert (loaded and loaded.name, wrong) == (wanted[-1], "")
    # At the end of the command nothing else replaces it, either.
    folder.look(ended_well=True)
    assert folder.commits == wanted


@pytest.mark.parametrize(
    ("state", "orders", "reasons"),
    [
        ({}, "checkpoint-5/ runs/", {"runs": "logs or settings"}),
        ({}, "checkpoint-5/ model.pt", {"model.pt": "it would replace checkpoint-5"}),
        ({}, "checkpoint-5/ checkpoint-4/", {"checkpoint-4": "below that of checkpoint-5"}),
        ({}, "tmp-checkpoint-5/", {"tmp-checkpoint-5": "that of a draft"}),
        ({"complete": "trainer_state.json"},
         "checkpoint-5/checkpoint-is-incomplete.txt|checkpoint-5/trainer_state.json",
         {"checkpoint-5": "it is not finished: checkpoint-is-incomplete.txt is there"}),
        ({}, "ckpt-5.data-00000-of-00001 ckpt-5.index model-5.index",
         {"ckpt-5.data-00000-of-00001": "a part of", "ckpt-5.index": "folder of its own"}),
        ({}, "training_metadata.json latest.weights.h5 _latest.weights.h5",
         dict.fromkeys(["training_metadata.json", "latest.weights.h5", "_latest.weights.h5"],
                       "a part of")),
        ({}, "a-5.pt b-6.pt", {"b-6.pt": "name the entries in state.entries"}),
        ({"complete": "done"}, "a/b|a/etc -> /etc|a/done", {"a": "its link etc leads outside"}),
        ({"entries": ["epoch*"]}, "step-5/", {"step-5": "does not match entries = epoch*"}),
        ({"complete": "trainer_stat.json"}, "checkpoint-5/",
         {"checkpoint-5": "no file of it matches complete = 'trainer_stat.json'"}),
    ],
)  # fmt: skip
def test_what_is_not_committed_is_named_with_the_reason(
    tmp_path: Path, state: dict[str, Any], orders: str, reasons: dict[str, str]
) -> None:
    folder = Folder(tmp_path, **state)
    for order in orders.split("|") if "|" in orders else orders.split():
        folder.do(order)
    folder.look()
    ignored = folder.entries.ignored
    assert {name: reasons[name] in reason for name, reason in ignored.items()} == dict.fromkeys(
        reasons, True
    )


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
        # DeepSpeed, mmengine, TensorFlow.
        ("latest", "epoch_8\n", "epoch_9"),
        ("last_checkpoint", "{folder}/epoch_9", "{folder}/epoch_9"),
        ("checkpoint", 'model_checkpoint_path: "epoch_9"', None),
        # Megatron, verl.
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
