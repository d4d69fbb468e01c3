"""Every AWS code and text that the product understands, in named sets, and nowhere else.

A launch failure is classified by the code in its message, else by the words that Auto Scaling
uses; docs/bad-days.md lists the classes. An API error becomes one of the ports' errors:

    FleetError
    ├─ Throttled    slow down; the next turn tries again, and nothing is concluded from it
    ├─ Refused      the role may not do this, or the account is not set up for it
    ├─ Gone         the group, instance or queue does not exist
    ├─ Conflict     somebody else changed the item of the table: its condition does not hold
    └─ Unavailable  a fault of AWS
       └─ TimedOut  no answer in time
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import lru_cache

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    NoCredentialsError,
    ReadTimeoutError,
    SSOError,
    TokenRetrievalError,
)

from spotkeeper.domain.failure import FailureClass
from spotkeeper.ports import Conflict, FleetError, Gone, Refused, Throttled, TimedOut, Unavailable

# AWS does not accept a signature: it is of another time, or made with another key.
OF_SIGNATURES = frozenset({
    "SignatureDoesNotMatch", "InvalidSignatureException", "RequestTimeTooSkewed",
})  # fmt: skip
# AWS does not know the credentials (any more).
CREDENTIAL_CODES = OF_SIGNATURES | {
    "InvalidClientTokenId", "ExpiredToken", "ExpiredTokenException", "RequestExpired",
    "UnrecognizedClientException",
}  # fmt: skip
# AWS's own faults: nothing launches, as when capacity is missing.
FAULT_CODES = frozenset({
    "InternalError", "InternalFailure", "ServiceUnavailable",
    "RequestTimeout", "RequestTimeoutException",
})  # fmt: skip
# The codes that count wherever a message has them, and those that no family below has. They stand
# in activity messages ("Could not launch Spot Instances. CODE - text") and in API errors.
CODES: Mapping[FailureClass, frozenset[str]] = {
    FailureClass.CAPACITY: frozenset({
        "InsufficientInstanceCapacity", "UnfulfillableCapacity",
        "SpotInstanceTermination", "SpotInstanceShutdown",
    }) | FAULT_CODES,
    FailureClass.QUOTA: frozenset({"MaxSpotInstanceCountExceeded", "VcpuLimitExceeded"}),
    FailureClass.CONFIGURATION: frozenset({"Unsupported", "ValidationError"}),
    # Why an instance ended by itself before it was in service (EC2's state reasons).
    FailureClass.BOOTSTRAP: frozenset({"InstanceInitiatedShutdown", "UserInitiatedShutdown"}),
    FailureClass.PERMISSION: CREDENTIAL_CODES | {
        "Client.InternalError", "Blocked", "ServiceLinkedRoleFailure",
    },
    FailureClass.THROTTLE: frozenset({
        "Throttling", "ProvisionedThroughputExceededException", "PriorRequestNotComplete",
        "BandwidthLimitExceeded", "LimitExceededException", "TransactionInProgressException",
        "ResourceContention", "ScalingActivityInProgress",
    }),
}  # fmt: skip
GONE_CODE = re.compile(
    r"NotFound|NoSuch|NonExistent|DoesNotExist|^InvalidInstanceID|^InvalidAddress$|\.Unavailable$"
)


class End(StrEnum):
    """What ended an instance of a group, by what that means for the fleet.

    Only `AWS` is a loss, and tells of the market: the others would not have happened elsewhere
    either. `UNHEALTHY` is what runs on it, `REPLACED` the group's own plan, `SHRUNK` a smaller
    desired capacity, `REQUESTED` a call about this instance.
    """

    AWS = "aws"
    UNHEALTHY = "unhealthy"
    REPLACED = "replaced"
    SHRUNK = "shrunk"
    REQUESTED = "requested"
    UNKNOWN = "unknown"


# Words of the causes of activities that end an instance, first match wins
# (tests/evidence/ends.tsv quotes them whole, with sources).
ENDS: Sequence[tuple[End, str]] = (
    (End.REPLACED,
     r"instance refresh|instance lifetime|rebalanc|balanc(e|ing)\b|zonal (auto)?shift"),
    (End.UNHEALTHY,
     r"\b(user|custom|elb|load balanc\w+|lattice|ebs|volume|target)\b[^.]*health|unhealthy"),
    (End.AWS,
     r"(health|status)[ -]?checks?\b|interrupt|terminated or stopped|reclaim|outage|impair"
     r"|scheduled (reboot|event|maintenance|retirement|stop)|retire"),
    (End.SHRUNK,
     r"shrinking|difference between desired|changing the desired|scaling policy|scheduled action"),
    (End.REQUESTED, r"user request|standby|detach"),
)  # fmt: skip
# What is to be done where AWS refuses.
GRANT = " (grant it: "
# Whom AWS refused what, where its text says so (IAM guide, "Troubleshoot access denied errors").
_WHO = re.compile(
    r"User: arn:[\w-]+:(?:sts|iam)::\d*:(?:assumed-role/(?=[^\s/]+/)|user/(?:\S+/)?)"
    r"(?P<name>[^\s/]+)\S* is not authorized to perform: (?P<action>[\w:*]+)"
    r"(?: on resource: (?P<resource>\S+))?"
)
# By what else than a missing statement, where its text says so (the same page).
_BY = re.compile(
    r"because (?P<none>no (?!identity-based)[\w -]+? allows)|with (?P<deny>an explicit deny[\w -]*)"
)
# The roles of the stack's functions, as CloudFormation names them.
_OF_A_FUNCTION = re.compile(
    r"-(CheckAvailability|CheckHealth|HandleInterruption|CollectSearchLogs|ExamineAccount"
    r"|KeepLedger|KeepJobs)Role-"
)
LOG_IN = " (log in again: these credentials are not valid any more)"
CHECK_CLOCK = " (check this machine's clock, then the secret key)"
# How the reason of a process begins that a user suspended; followed by "at" and a time.
USER_SUSPENDED = "User suspended"
CONDITION_FAILED = "ConditionalCheckFailedException"

# Auto Scaling answers these with its catch-all code; only the words tell.
GONE_WORDS = ("not found", "does not exist", "is not part of", "no longer exists")

# Spot request statuses (EC2 user guide, "Spot request status"), by what they mean for a fleet.
SPOT_STATUSES: Mapping[FailureClass, frozenset[str]] = {
    FailureClass.CAPACITY: frozenset({
        "capacity-not-available", "capacity-oversubscribed", "constraint-not-fulfillable",
        "az-group-constraint", "launch-group-constraint", "placement-group-constraint",
        "system-error", "instance-terminated-no-capacity", "instance-stopped-no-capacity",
        "instance-terminated-launch-group-constraint", "instance-terminated-by-service",
        "instance-terminated-capacity-oversubscribed",
    }),
    FailureClass.PRICE: frozenset({
        "price-too-low", "instance-terminated-by-price", "instance-stopped-by-price",
    }),
    FailureClass.QUOTA: frozenset({"limit-exceeded"}),
    FailureClass.CONFIGURATION: frozenset({"bad-parameters", "schedule-expired"}),
}  # fmt: skip
# EC2 may take back what it marked. Where a request says that its instance was taken, the instance
# runs on for the two minutes of its notice (note † of the guide's table, for no-capacity).
SPOT_MARKED_STATUSES = frozenset({
    "marked-for-termination", "marked-for-stop", "marked-for-stop-by-experiment",
})  # fmt: skip
SPOT_FINAL_STATUSES = frozenset({
    "instance-terminated-by-experiment", "instance-stopped-by-experiment",
    "instance-terminated-by-schedule",
}).union(*[
    [status for status in some if status.startswith("instance")] for some in SPOT_STATUSES.values()
])  # fmt: skip
SPOT_TROUBLED_STATUSES = SPOT_MARKED_STATUSES.union(SPOT_FINAL_STATUSES, *SPOT_STATUSES.values())

# EC2 has hundreds of codes. One that is not listed, where a message has its code, belongs to the
# first of these families.
FAMILIES: Sequence[tuple[FailureClass, str]] = (
    (FailureClass.THROTTLE,
     r"Throttl|SlowDown|TooManyRequests|(Request|Rate)LimitExceeded|Concurrent"),
    (FailureClass.PERMISSION,
     r"Access(Is)?Denied|[Uu]nauthori[sz]ed|Not(Yet)?Authori[sz]ed|NotPermitted|NotAllowed|Forbidden"
     r"|AuthFailure|OptIn|Subscri|K[Mm][Ss]|CustomerKey|Verification"
     r"|Account(?!\w*Limit)"),
    (FailureClass.QUOTA, r"(Limit|Count|Quota)s?(Exceeded|Reached)|Max\w*Exceeded|IOPSLimit"),
    (FailureClass.PRICE, r"Price"),
    (FailureClass.CAPACITY,
     r"Insufficient|Unfulfillable|Capacity(Exceeded|NotAvailable|Error)|^Unavailable|sUnavailable"),
    (FailureClass.CONFIGURATION,
     r"^(Invalid|Missing|Unknown|Malformed|Inco|Duplicate|Legacy|Non|NoSuch|Disallowed)|\.|Violation"
     r"|Unsupported|Not(Found|Supported|Specified|Exist|AvailableInZone)|Mismatch|Conflict|InUse"
     r"|Idempotent|TooLarge|Validation"),
)  # fmt: skip
# Words of messages that carry no code, first match wins (issue threads and the Auto Scaling
# guide, "Troubleshoot"; tests/evidence/launch_failures.tsv quotes them whole, with sources).
WORDS: Sequence[tuple[FailureClass, str]] = (
    (FailureClass.BOOTSTRAP, r"lifecycle action"),
    (FailureClass.THROTTLE,
     r"rate exceeded|(request|rate) limit exceeded|request rate|throttl|slow down"
     r"|too many requests"),
    (FailureClass.PERMISSION,
     r"client error on launch|authoriz|authentication failure|access denied|permission|forbidden"
     r"|not allowed (to|by)|\brole\b[^.]*assume|allowed (ami|image)s|service[- ]linked role|subscri"
     r"|credentials|signature|\bkms\b|\bkey\b[^.]*(pending deletion|disabled|accessible)"
     r"|opt(ed)?[ -]in\b|being (validat|verif)|pending verification"
     r"|accounts? [^.]*(block|suspend|clos|restrict|verif|validat|recogni|activat|hold)"),
    (FailureClass.QUOTA,
     r"quota|vcpu limit|instance limit|limit exceeded|count exceeded|limit (of|has been|was) "
     r"|exceed\w* [^.]*\b(limit|allowed|number of)|reached (the|your) (maximum|limit)"
     r"|already running|maximum number of|more [^.]* than your"),
    (FailureClass.PRICE, r"spot (request )?price|(max|maximum|bid|market) price"),
    (FailureClass.CAPACITY,
     r"(insufficient|not (have )?enough|not (have )?sufficient|\bno|out of|any host)\b[^.]*"
     r"\b(capacity|(ip )?addresses|instances available)|unable to fulfill|waiting for instance\(s\)"
     r"|\bcapacity\b(?! reservation)|internal (server )?error|service [a-z ]*unavailable"
     r"|(temporarily|currently) unable|timed out|reclaimed|termination reason: server\."),
    (FailureClass.CONFIGURATION,
     r"(?<!aws )(?<!contact )support|not (be )?found|not exist"
     r"|(can ?not|could not|unable to) (find|locate|resolve)"
     r"|invalid|not (a )?valid|valid fully-formed|malformed|eligible|compatible|mismatch|not match"
     r"|expected format|for parameter|is required|requires|missing|duplicate|not permitted"
     r"|(may( not)?|must|can ?not|can only) be\b|(must|can) (contain|have|specify|use|match)"
     r"|belongs? to|in (a )?vpc\b|default (vpc|subnet)|no subnets|load balancer|target group"
     r"|too (high|low|large|small|long)|limited to|no longer accept|at (most|least)"
     r"|block[- ]device|device name|launch (template|configuration)|user ?data|\b(image|ami)\b[^.]*"
     r"\b(not available|pending|deprecated|disabled|deleted|deregistered)|\bin use"
     r"|already (exists|been used)|(is|are) (unknown|reserved)|reserved (name|address)"
     r"|(smaller|larger|greater) than|not (offered|available) in|elastic graphics|cannot launch"
     r"|security group|key pair|instance profile|not allow\b|instance ?requirements"),
    (FailureClass.BOOTSTRAP,
     r"became unhealthy while waiting|failed to (become|report) healthy"
     r"|failed [^.]*(health|status) checks?"),
)  # fmt: skip
_CLASSES_BY_CODE = {code: of for of, codes in CODES.items() for code in codes}
SPOT_CLASSES = {status: of for of, statuses in SPOT_STATUSES.items() for status in statuses}
_CODE = re.compile(r"\b[A-Z][A-Za-z0-9]+(?:\.[A-Z][A-Za-z]+)*\b")
# Where a message has its code; elsewhere, a word of this form may be the name of anything.
_AT_CODE = re.compile(
    r"(?:^|[.:;,(] ?)(?:(?:Client|Server)\.)?([A-Z]\w*[a-z]\w*[A-Z.][\w.]*)(?= -|:|;|\)|$)"
)
# What users have named may hold any word: in a cause, and in a failure's text.
_NAMES = re.compile(r"\b(alarm|policy|action named) .*?(?= in state | changing the desired |$)")
_NAMED = re.compile(
    r"(?<!\w)'[^']*'|\"[^\"]*\"| \([^)]*\)|(?<=:\d{12}:)\S+"
    r"|(?<=key pair )\S+|(?<=security group )\S+|(?<=load balancer )\S+|(?<=balancer named )\S+"
)
_WHOSE_FAULT = re.compile(r"^(Client|Server)\.")
# A failed launch is read again in each turn of the minutes that follow it.
TEXTS_REMEMBERED = 500


@lru_cache(maxsize=TEXTS_REMEMBERED)
def classify(message: str) -> tuple[FailureClass, bool]:
    """Classify a launch failure's text; false with it when no code or words are known.

    An unknown text counts as capacity at first: a needless backfill is released, a gap would stay.
    """
    for code in _CODE.findall(message):
        # EC2 says beside a code whose fault it was, which changes what few of them mean.
        for known in (code, _WHOSE_FAULT.sub("", code)):
            if known in _CLASSES_BY_CODE:
                return _CLASSES_BY_CODE[known], True
    families = (_first(FAMILIES, named) for named in _AT_CODE.findall(message))
    words = message.lower().replace("can't", "cannot").replace("n't", " not")
    of = next(filter(None, families), None) or _first(WORDS, _NAMED.sub("", words))
    return of or FailureClass.CAPACITY, of is not None


def _first[T](table: Sequence[tuple[T, str]], text: str) -> T | None:
    return next((of for of, pattern in table if re.search(pattern, text)), None)


def end_of(cause: str) -> End:
    """Say what ended an instance, by the cause of the activity that ended it."""
    return _first(ENDS, _NAMES.sub("", cause.lower())) or End.UNKNOWN


def by_a_user(suspension_reason: str) -> bool:
    """Say whether a user suspended a process; a missing reason counts as a user's.

    AWS suspends processes itself where a group launched nothing for a day (Auto Scaling guide,
    "Suspend and resume processes"); what it writes then is documented nowhere.
    """
    return not suspension_reason or suspension_reason.startswith(USER_SUSPENDED)


@contextmanager
def aws_errors(operation: str) -> Iterator[None]:
    """Turn what botocore raises during `operation` into an error of the ports."""
    try:
        yield
    except ClientError as error:
        raise _translate(operation, error) from error
    except (ConnectTimeoutError, ReadTimeoutError) as error:
        raise TimedOut(f"{operation}: {error}") from error
    except (NoCredentialsError, SSOError, TokenRetrievalError) as error:
        raise Unavailable(f"{operation}: {error} (log in to AWS, or name a profile)") from error
    except BotoCoreError as error:
        raise Unavailable(f"{operation}: {error}") from error


def _advice(text: str) -> str:
    """Name the role that AWS refused, and the statement that it lacks or the policy that forbids.

    A function's role has its statement in the template, an operator's is another one.
    """
    if not (who := _WHO.search(text)):
        has = "for a command, the role in the stack's output OperatorRole has it"
        return f": {text}{GRANT}template.yaml lists what roles need; {has}"
    what = f"{who['action']} on {(who['resource'] or '*').rstrip('.,')}"
    if by := _BY.search(text):
        why = f"{by['none']} it" if by["none"] else f"{by['deny']} refuses it"
        return f"{GRANT}{who['name']} may not {what}: {why}: correct that policy"
    lacks = f"{who['name']} lacks the statement Allow {what}"
    if _OF_A_FUNCTION.search(who["name"]):
        lacks = f"the function's role {lacks}"
        return f"{GRANT}{lacks}: template.yaml has it, deploy the stack again"
    return f"{GRANT}{lacks}; the role in the stack's output OperatorRole has it"


def _translate(operation: str, error: ClientError) -> FleetError:
    detail = error.response.get("Error", {})
    code, text = detail.get("Code", ""), detail.get("Message", "")
    message = f"{operation}: {code}: {text}"
    if code in CREDENTIAL_CODES:
        return Refused(f"{message}{CHECK_CLOCK if code in OF_SIGNATURES else LOG_IN}")
    failure_class, _ = classify(code)
    if failure_class is FailureClass.THROTTLE:
        return Throttled(message)
    if failure_class is FailureClass.PERMISSION:
        # Where AWS's text names who lacks what, that says all of it.
        return Refused(f"{operation}: {code}{_advice(text)})")
    if GONE_CODE.search(code) or any(words in text.lower() for words in GONE_WORDS):
        return Gone(message)
    return Conflict(message) if code == CONDITION_FAILED else Unavailable(message)
