"""Settings that name something in the account: groups, and the queue of requests."""

from functools import partial

from spotkeeper.domain.settings.setting import Setting

# AWS describes the groups of all fleets in one call, and refuses that for any other character.
_OF_A_GROUP = "[\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
group_name = partial(Setting, unit="name", pattern=f"^{_OF_A_GROUP}{{1,255}}$")
request_queue = partial(
    Setting,
    "queue that the workers take requests from; Spotkeeper reads its length. An SQS queue; "
    "`amazon-mq://BROKER/VHOST/QUEUE` (the vhost `/` is `%2F`), through CloudWatch and a minute or "
    "two late; or `rabbitmq://VHOST/QUEUE` or `redis://DATABASE/QUEUE` on a broker of your own, "
    "which [an agent reads](workers.md#rabbitmq). Set by the stack's `RequestQueueName`",
    "you have one: [to zero and back](sizing.md#to-zero-and-back)",
    unit="URL",
    pattern=(
        r"^(https://sqs\.[a-z0-9-]+\.amazonaws\.(com|com\.cn|eu)"
        r"/[0-9]{12}/[A-Za-z0-9_-]{1,80}(\.fifo)?"
        r"|amazon-mq://[A-Za-z0-9_-]{1,50}/[^/\s]{1,255}/[^/\s]{1,255}"
        r"|rabbitmq://[^/\s]{1,255}/[^/\s]{1,255}"
        r"|redis://[0-9]{1,5}/[^/\s]{1,255})$"
    ),
)
