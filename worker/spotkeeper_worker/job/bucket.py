"""The job's bucket: its calls of S3, by boto3 (`pip install 'spotkeeper-worker[jobs]'`)."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from spotkeeper_worker.extras import needs

with needs("jobs"):
    import boto3
    from boto3.exceptions import Boto3Error, S3UploadFailedError
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_Answer = TypeVar("_Answer")
_Item = TypeVar("_Item")
AT_ONCE = 8
MIB = 1024 * 1024
_CONFLICTS = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
_ABSENT = {"NoSuchKey", "404", "ParameterNotFound", "ResourceNotFoundException"}


class BucketError(Exception):
    """S3 refused a call, or did not answer: the call may have had its effect all the same."""


class Conflict(BucketError):
    """The object is another one than the condition names. AWS answers 412, or 409 in a race."""


class Absent(BucketError):
    """There is no such object or secret."""


def each_of(
    items: Iterable[_Item], call: Callable[[_Item], _Answer], at_once: int = AT_ONCE
) -> list[_Answer]:
    """Make a call for each item, some at once, for a call of S3 takes tens of milliseconds.

    Returns the answers in no order. After an error no call begins, and the first error is raised.
    The threads end with the process, as those of concurrent.futures do not.
    """
    waiting = deque(items)
    answers: list[_Answer] = []
    errors: list[BaseException] = []

    def work() -> None:
        while not errors:
            try:
                item = waiting.popleft()
            except IndexError:
                return
            try:
                answers.append(call(item))
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers


class Bucket:
    """Objects by key. `put` with a condition is how two machines are kept apart."""

    def __init__(self, name: str, region: str) -> None:
        self._name, self._region = name, region
        retries: Any = {"mode": "standard", "total_max_attempts": 3}
        config = Config(
            connect_timeout=5,
            read_timeout=30,
            retries=retries,
            max_pool_connections=3 * AT_ONCE,
        )
        if boto3.DEFAULT_SESSION is None:
            boto3.setup_default_session()
        session: Any = boto3.DEFAULT_SESSION
        # A client that is made while the metadata service is slow would never have credentials.
        if session.get_credentials() is None:
            raise BucketError("there are no credentials: the machine needs an instance profile")
        self._s3: Any = boto3.client("s3", region_name=region or None, config=config)
        shape = self._s3.meta.service_model.operation_model("PutObject").input_shape
        if "IfMatch" not in shape.members:
            raise BucketError(f"boto3 {boto3.__version__} has no IfMatch; install 1.35.70 or newer")
        # Little is kept in memory: a few parts, and what of them waits for the disk.
        self._transfer = TransferConfig(
            max_concurrency=3, multipart_chunksize=16 * MIB, multipart_threshold=32 * MIB,
            max_io_queue=8, io_chunksize=MIB // 4,
        )  # fmt: skip
        self.answered_at = time.monotonic()
        """When S3 last answered anything, a refusal included."""

    def get(self, key: str) -> tuple[bytes, str] | None:
        """Read an object and its entity tag; None where it is not there."""
        try:
            answer = self._ask(lambda: self._s3.get_object(Bucket=self._name, Key=key))
            return self._ask(answer["Body"].read), answer["ETag"]
        except Absent:
            return None

    def put(self, key: str, body: bytes, match: str | None) -> str:
        """Write an object over the one with the tag `match`; None: where there is none yet."""
        condition = {"IfNoneMatch": "*"} if match is None else {"IfMatch": match}
        arguments = {"Bucket": self._name, "Key": key, "Body": body, **condition}
        return str(self._ask(lambda: self._s3.put_object(**arguments))["ETag"])

    def write(self, key: str, body: bytes) -> None:
        """Write an object without a condition."""
        self._ask(lambda: self._s3.put_object(Bucket=self._name, Key=key, Body=body))

    def upload(self, path: Path, key: str) -> None:
        """Write a file as an object."""
        given = {"Filename": str(path), "Bucket": self._name, "Key": key, "Config": self._transfer}
        self._ask(lambda: self._s3.upload_file(**given))

    def download(self, key: str, path: Path) -> None:
        """Write an object into a file; raises Absent."""
        given = {"Filename": str(path), "Bucket": self._name, "Key": key, "Config": self._transfer}
        self._ask(lambda: self._s3.download_file(**given))

    def keys(self, prefix: str) -> list[str]:
        """List the keys that begin with a prefix."""
        return [f"{prefix}{name}" for name in self.sizes(prefix)]

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size of each object by its key, less the prefix."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=prefix)
        return self._ask(
            lambda: {
                each["Key"][len(prefix) :]: each["Size"]
                for page in pages
                for each in page.get("Contents", ())
            }
        )

    def beside(self, name: str) -> Bucket:
        """Return another bucket of the same region."""
        return Bucket(name, self._region)

    def secret(self, where: str) -> str:
        """Read `ssm:NAME` or `secretsmanager:NAME`; raises Absent."""
        service, _, name = where.partition(":")
        of_service: Any = boto3.client
        client = of_service(service, region_name=self._region or None)
        if service == "ssm":
            answer = self._ask(lambda: client.get_parameter(Name=name, WithDecryption=True))
            return str(answer["Parameter"]["Value"])
        return str(self._ask(lambda: client.get_secret_value(SecretId=name))["SecretString"])

    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is no error."""
        self._ask(lambda: self._s3.delete_object(Bucket=self._name, Key=key))

    def _ask(self, call: Callable[[], _Answer]) -> _Answer:
        try:
            answer = call()
        except ClientError as error:
            self.answered_at = time.monotonic()
            code = error.response.get("Error", {}).get("Code", "")
            kind = Conflict if code in _CONFLICTS else Absent if code in _ABSENT else BucketError
            raise kind(str(error)) from None
        except (Boto3Error, BotoCoreError) as error:
            if isinstance(error, S3UploadFailedError) and "An error occurred (" in str(error):
                self.answered_at = time.monotonic()
            raise BucketError(f"{type(error).__name__}: {error}") from None
        self.answered_at = time.monotonic()
        return answer
