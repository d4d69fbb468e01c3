"""The mail that reports the end of a job."""

from typing import TYPE_CHECKING

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.jobs.job import Job, Outcome

if TYPE_CHECKING:
    from mypy_boto3_sns import SNSClient

_WHY = {
    Outcome.DONE: "its command ended with exit code 0",
    Outcome.FAILED: "its command failed too often",
    Outcome.STOPPED: "somebody stopped it",
    Outcome.HOURS: "it reached max_hours",
    Outcome.USD: "it reached max_usd",
    Outcome.IDLE: "it was idle",
}


class JobMail:
    """Sends it to the stack's topic; at least once."""

    def __init__(self, sns: "SNSClient", topic: str, bucket: str) -> None:
        """Take a typed client; nothing is called yet."""
        self._sns, self._topic, self._bucket = sns, topic, bucket

    def send(self, job: Job, last_lines: str) -> None:
        """Report a job's end."""
        outcome = job.outcome or Outcome.STOPPED
        with aws_errors(f"sending the mail of job {job.name}"):
            self._sns.publish(
                TopicArn=self._topic,
                # SNS takes 100 characters.
                Subject=f"Job {job.name}: {outcome}"[:100],
                Message=mail_text(job, self._bucket, last_lines),
            )


def mail_text(job: Job, bucket: str, last_lines: str) -> str:
    """Write the mail of a job's end."""
    outcome = job.outcome or Outcome.STOPPED
    code = "" if job.exit_code is None else f" (exit code {job.exit_code})"
    where = f"s3://{bucket}/jobs/{job.name}/"
    if job.home:
        where += f", and volume {job.home} or its newest snapshot, in {job.zone}"
    elif job.image:
        where += f", and image {job.image}"
    return "\n".join((
        f"Job {job.name} ended: {_WHY[outcome]}{code}.",
        "",
        f"It ran for {job.hours:.1f} hours and cost about {job.usd:.2f} USD, with"
        f" {job.attempt} launches and {job.restarts} restarts after errors.",
        f"The result is in {where}",
        f"Fetch it: spotkeeper job fetch {job.name} DIRECTORY",
        "",
        "The last lines of its output:",
        last_lines,
    ))  # fmt: skip
