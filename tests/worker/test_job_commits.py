"""Machines that share a job's bucket: killed anywhere, two at once, their calls lost or late."""

import contextlib
import hashlib
import itertools
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import boto3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moto import mock_aws

from spotkeeper_worker.job import folders
from spotkeeper_worker.job.bucket import Absent, Bucket, BucketError, Conflict
from spotkeeper_worker.job.commits import Head, Keeper, NotLoaded, Owner, TakenOver
from spotkeeper_worker.job.entries import Entries, Entry, look_at

NEED = 4
PARTS = ("model", "part/optimizer")
HEAD = "jobs/resnet/head.json"


class Objects(Bucket):
    """A bucket in memory, as strict as S3."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[bytes, str]] = {}
        self._tags = itertools.count()

    def get(self, key: str) -> tuple[bytes, str] | None:
        return self.kept.get(key)

    def put(self, key: str, body: bytes, match: str | None) -> str:
        found = self.kept.get(key)
        if found is None and match is not None:
            raise Absent(key)
        if found is not None and found[1] != match:
            raise Conflict(key)
        self.write(key, body)
        return self.kept[key][1]

    def write(self, key: str, body: bytes) -> None:
        self.kept[key] = (body, f"{hashlib.sha256(body).hexdigest()[:8]}-{next(self._tags)}")

    def upload(self, path: Path, key: str) -> None:
        self.write(key, path.read_bytes())

    def download(self, key: str, path: Path) -> None:
        if key not in self.kept:
            raise Absent(key)
        path.write_bytes(self.kept[key][0])

    def sizes(self, prefix: str) -> dict[str, int]:
        known = ((key, body) for key, (body, _) in self.kept.items() if key.startswith(prefix))
        return {key[len(prefix) :]: len(body) for key, body in known}

    def beside(self, name: str) -> "Objects":
        return self

    def secret(self, where: str) -> str:
        if where.endswith("typo"):
            raise Absent(where.partition(":")[2])
        return f"secret of {where.partition(':')[2]}"

    def delete(self, key: str) -> None:
        self.kept.pop(key, None)


def entry_in(folder: Path, step: int) -> Entry:
    """A checkpoint whose parts hold its number."""
    place = folder / f"{step:06d}"
    for part in PARTS:
        (place / part).parent.mkdir(parents=True, exist_ok=True)
        (place / part).write_text(str(step))
    found = look_at(place)
    assert found is not None
    return found


def keeper_of(store: Bucket, number: int = 1, generation: int = 1, keep: int = 2) -> Keeper:
    times = itertools.count(1_700_000_000)
    owner = Owner(f"i-{number}", number, generation)
    return Keeper(store, "resnet", owner, keep, lambda: next(times))


# --- the law --------------------------------------------------------------------------------------


class Killed(BaseException):
    """The machine is gone: nothing that it does has an effect any more."""


class World(Objects):
    """The bucket, and what must hold after every write of the head."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.late: list[Callable[[], object]] = []
        self.done = False

    def put(self, key: str, body: bytes, match: str | None) -> str:
        before = self.get(key)
        tag = super().put(key, body, match)
        old, new = Head.read(before[0]) if before else None, Head.read(body)
        if old and new.owner.generation < old.owner.generation:
            self.wrong.append("an older owner wrote after a newer claim")
        if old and int(new.step or 0) < int(old.step or 0):
            self.wrong.append("the work went back")
        if old and old.done and new != old:
            self.wrong.append("a job that was done was written again")
        self.wrong += [f"{key} is not there" for key in new.keys if not self.get(key)]
        if new.done and int(new.step or 0) != NEED:
            self.wrong.append("done before its last commit")
        self.done = new.done
        return tag


class Machine:
    """The real `Keeper` in a thread of its own, which makes one call of the bucket at a time."""

    def __init__(self, world: World, number: int, generation: int, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.number, self.generation = number, generation
        self._order = ""
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self.alive = True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._waits.acquire()

    def step(self, order: str) -> None:
        """Let it make its next call, or fail it, or end with it."""
        self._order = order
        self._go.release()
        self._waits.acquire()
        if not self.alive:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except (Killed, TakenOver):
            pass
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.world.wrong.append(repr(error))
        finally:
            self.alive = False
            self._waits.release()

    def _work(self) -> None:
        mine: Any = self
        keeper = keeper_of(mine, self.number, self.generation)
        keeper.at_once = 1
        _again(keeper.claim)
        if keeper.head.done:
            _again(keeper.clean)
            return
        (loaded, wrong) = _again(lambda: keeper.load(self.folder))
        step = int(loaded.name) if loaded else 0
        if wrong or (loaded and [p for p in PARTS if (loaded.path / p).read_text() != str(step)]):
            self.world.wrong.append(f"an incomplete checkpoint was loaded: {wrong}")
        while step < NEED:
            step += 1
            entry = entry_in(self.folder, step)
            assert _again(lambda entry=entry: keeper.commit(entry))  # type: ignore[misc]
        _again(lambda: keeper.finish(0))
        _again(keeper.clean)

    def _call[T](self, effect: Callable[[], T]) -> T:
        self._waits.release()
        self._go.acquire()
        if self._order == "killed before":
            raise Killed
        if self._order == "refused":
            raise BucketError("throttled")
        if self._order == "late":
            self.world.late.append(effect)
            raise BucketError("no answer")
        answer = effect()
        if self._order == "killed after":
            raise Killed
        if self._order == "lost":
            raise BucketError("no answer")
        return answer

    def upload(self, path: Path, key: str) -> None:
        """Take what the file holds now, also where the call has its effect later."""
        body = path.read_bytes()
        self._call(lambda: self.world.write(key, body))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *given: self._call(lambda: getattr(self.world, name)(*given))


def _again[T](call: Callable[[], T]) -> T:
    while True:
        try:
            return call()
        except (Conflict, Absent, NotLoaded):
            raise
        except BucketError:
            continue


ORDERS = ("go", "go", "go", "killed before", "killed after", "lost", "late", "refused")
STORIES = st.lists(
    st.tuples(
        st.sampled_from(("step", "step", "step", "step", "launch", "restart", "late effect")),
        st.integers(0, 2),
        st.sampled_from(ORDERS),
        st.integers(1, 12),
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=60)
@given(STORIES)
def test_machines_that_share_a_bucket_never_break_the_job(
    story: list[tuple[str, int, str, int]],
) -> None:
    world = World()
    with tempfile.TemporaryDirectory() as name:
        machines: list[Machine] = []
        made = itertools.count(1)

        def launch(number: int, generation: int) -> None:
            folder = Path(name) / str(next(made))
            folder.mkdir()
            machines.append(Machine(world, number, generation, folder))

        def alive() -> list[Machine]:
            return [each for each in machines if each.alive]

        launch(1, 1)
        for what, which, order, calls in story:
            if what == "launch" and len(alive()) < 3:
                launch(machines[-1].number + 1, machines[-1].generation + 1)
            elif what == "restart":
                _restart(machines[-1])
                launch(machines[-1].number, machines[-1].generation)
            elif what == "late effect" and world.late:
                # A download whose folder is gone by then has no effect.
                with contextlib.suppress(BucketError, FileNotFoundError):
                    world.late.pop(which % len(world.late))()
            elif what == "step" and alive():
                machine = alive()[which % len(alive())]
                for _ in range(calls - 1):
                    if machine.alive:
                        machine.step("go")
                if machine.alive:
                    machine.step(order)
        launch(machines[-1].number + 1, machines[-1].generation + 1)
        for machine in (machines[-1], *alive()):
            while machine.alive:
                machine.step("go")
        kept = Head.read(world.kept[HEAD][0]).keys
        left = set(world.keys("jobs/resnet/steps/")) - kept
        for effect in world.late:
            with contextlib.suppress(BucketError):
                effect()
    assert world.wrong == []
    assert world.done
    # An agent that ends the job, or is too late, deletes what the head does not name.
    assert not left or "late" in {order for _, _, order, _ in story}


def _restart(machine: Machine) -> None:
    """Its agent is killed: of one machine only one agent runs."""
    while machine.alive:
        machine.step("killed before")


# --- one by one -----------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "moto"])
def store(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """The bucket in memory, and the real adapter: what the law relies on holds for both."""
    if request.param == "memory":
        yield Objects()
        return
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="the-jobs")
        yield Bucket("the-jobs", "us-east-1")


def test_a_bucket_is_written_under_a_condition(store: Bucket, tmp_path: Path) -> None:
    assert store.get("a") is None
    tag = store.put("a", b"1", None)
    with pytest.raises(Conflict):
        store.put("a", b"2", None)
    with pytest.raises(Conflict):
        store.put("a", b"2", '"0123456789abcdef0123456789abcdef"')
    with pytest.raises(Absent):
        store.put("b", b"2", tag)
    assert store.put("a", b"2", tag) != tag
    assert (store.get("a") or (b"",))[0] == b"2"
    (tmp_path / "file").write_bytes(b"3")
    store.upload(tmp_path / "file", "c/d")
    store.download("c/d", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"3"
    assert store.keys("c/") == ["c/d"]
    store.delete("c/d")
    store.delete("c/d")
    assert store.keys("c/") == []
    with pytest.raises(Absent):
        store.download("c/d", tmp_path / "copy")
    for service in ("ssm", "secretsmanager"):
        with pytest.raises(Absent):
            store.secret(f"{service}:/typo")


def test_a_boto3_that_is_too_old_is_named_before_the_command_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It can claim a new job, and commit nothing of it."""
    put_object = SimpleNamespace(input_shape=SimpleNamespace(members={"IfNoneMatch": None}))
    model = SimpleNamespace(operation_model={"PutObject": put_object}.get)
    client = SimpleNamespace(meta=SimpleNamespace(service_model=model))
    monkeypatch.setattr(boto3, "client", lambda *given, **named: client)
    with pytest.raises(BucketError, match=r"has no IfMatch; install 1\.35\.70 or newer"):
        Bucket("the-jobs", "us-east-1")


class Disturbed(Objects):
    """A bucket that calls `after` once an upload had its effect."""

    after: Callable[[], object] = staticmethod(lambda: None)

    def upload(self, path: Path, key: str) -> None:
        super().upload(path, key)
        self.after()


def no_answer() -> NoReturn:
    raise BucketError("no answer")


def test_a_write_whose_answer_is_lost_is_the_machine_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Objects()
    keeper = keeper_of(store)
    keeper.claim()
    with monkeypatch.context() as lost:
        lost.setattr(store, "put", lambda *given: (Objects.put(store, *given), no_answer()))
        assert keeper.commit(entry_in(tmp_path, 1))
        # Nor can it be read back at once: the next commit finds what this one wrote.
        lost.setattr(store, "get", lambda _: no_answer())
        with pytest.raises(BucketError):
            keeper.commit(entry_in(tmp_path, 2))
    assert keeper.commit(entry_in(tmp_path, 3))
    assert keeper.head.step == "000003"


def test_a_checkpoint_of_one_name_is_not_written_over_while_the_head_names_it(
    tmp_path: Path,
) -> None:
    store = Disturbed()
    keeper = keeper_of(store)
    keeper.claim()
    assert keeper.commit(entry_in(tmp_path / "one", 1))
    (tmp_path / "one" / "000001" / "model").write_text("again")
    changed = look_at(tmp_path / "one" / "000001")
    assert changed is not None
    store.after = no_answer
    with pytest.raises(BucketError):
        keeper.commit(changed)
    loaded, wrong = keeper.load(tmp_path / "two")
    assert (loaded is not None, wrong) == (True, "")


def test_many_small_files_are_copied_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    eight = threading.Barrier(8, timeout=10)
    keeper = keeper_of(Objects())
    keeper.claim()
    for number in range(80):
        (tmp_path / "9").mkdir(exist_ok=True)
        (tmp_path / "9" / f"shard{number}").write_text(f"{number}")
    entry = look_at(tmp_path / "9")
    assert entry
    for call in ("upload", "download"):
        does = getattr(Objects, call)
        monkeypatch.setattr(Objects, call, lambda *given, _does=does: (eight.wait(), _does(*given)))
    assert keeper.commit(entry)
    loaded, _ = keeper.load(tmp_path / "two")
    assert loaded
    assert all(path.read_text() == name[5:] for name, path in loaded.files().items())
    folders.to_folder(keeper.store, "jobs/resnet/steps/", tmp_path / "three")
    assert len(folders.files_in(tmp_path / "three")) == len(loaded.files()) == 80


def test_of_one_generation_the_newest_machine_is_the_owner() -> None:
    """Machines that use a volume one after the other share its generation."""
    store = Objects()
    keeper_of(store, 1, 1).claim()
    again = keeper_of(store, 1, 1)
    again.claim()
    assert again.was_mine
    keeper_of(store, 2, 1).claim()
    with pytest.raises(TakenOver):
        keeper_of(store, 1, 1).claim()


def test_an_error_is_kept_for_an_agent_that_starts_again_and_not_for_the_next_machine() -> None:
    store = Objects()
    first = keeper_of(store, 1, 1)
    first.claim()
    first.finish(3)
    assert (keeper_of(store, 1, 1).claim().exit_code, first.head.done) == (3, False)
    assert keeper_of(store, 2, 2).claim().exit_code is None


def test_a_checkpoint_that_is_not_whole_is_not_loaded(tmp_path: Path) -> None:
    store = Objects()
    keeper = keeper_of(store)
    keeper.claim()
    for step in (1, 2):
        keeper.commit(entry_in(tmp_path / "one", step))
    lost, changed = sorted(key for key in store.kept if "000002-" in key), store.kept
    del changed[lost[0]]
    loaded, wrong = keeper.load(tmp_path / "two")
    assert loaded is not None
    assert loaded.name == "000001"
    assert wrong == "000002: not all of it is in the bucket any more"
    for key in store.keys("jobs/resnet/steps/"):
        store.write(key, b"x")
    with pytest.raises(NotLoaded, match="is not what was uploaded"):
        keeper.load(tmp_path / "three")


def test_a_checkpoint_that_changes_during_its_upload_is_not_committed(tmp_path: Path) -> None:
    store = Disturbed()
    keeper = keeper_of(store)
    keeper.claim()
    entry = entry_in(tmp_path, 1)
    store.after = partial((entry.path / "model").write_text, "1, and more")
    assert not keeper.commit(entry)
    assert keeper.head.step is None


def test_a_script_that_removes_old_checkpoints_takes_none_out_of_an_upload(tmp_path: Path) -> None:
    store = Disturbed()
    keeper = keeper_of(store)
    keeper.claim()
    entry = entry_in(tmp_path, 1)
    store.after = partial(shutil.rmtree, entry.path, ignore_errors=True)
    assert keeper.commit(entry)
    assert [store.kept[key][0] for key in keeper.head.keys] == [b"1", b"1"]
    assert list(tmp_path.iterdir()) == []


# --- which entry ----------------------------------------------------------------------------------


def test_a_folder_that_is_none_is_an_error_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    entries = Entries(tmp_path / "checkpoints", None)
    assert entries.look(0.0, ended_well=True) is None
    (tmp_path / "checkpoints").touch()
    with pytest.raises(NotADirectoryError):
        entries.look(0.0, ended_well=True)


def test_what_a_command_that_ended_well_wrote_is_complete(tmp_path: Path) -> None:
    entries = Entries(tmp_path, None)
    entry_in(tmp_path, 1)
    assert entries.look(0.0) is None
    ended = entries.look(0.0, ended_well=True)
    assert ended is not None
    assert ended.name == "000001"
