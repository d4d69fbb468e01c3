"""What AWS calls states, processes and failures, word for word."""

PENDING = "Pending"
PENDING_WAIT = "Pending:Wait"
IN_SERVICE = "InService"
TERMINATING = "Terminating:Wait"
TERMINATED = "Terminated"
WARMED = "Warmed:"
FAILED = "Failed"
CANCELLED = "Cancelled"
SUCCESSFUL = "Successful"
IN_PROGRESS = "InProgress"
LAUNCHING = frozenset({PENDING, PENDING_WAIT})

# Texts as AWS writes them; the classifier of the product reads them as it does in production.
SPOT_DRY = (
    "Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot capacity "
    "available that matches your request. Launching EC2 instance failed."
)
SPOT_FULL = (
    "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to "
    "your request configuration. Please adjust your request and try again. "
    "Launching EC2 instance failed."
)
ON_DEMAND_DRY = (
    "We currently do not have sufficient {type} capacity in the Availability Zone you requested "
    "({zone}). Our system will be working on provisioning additional capacity. You can currently "
    "get {type} capacity by not specifying an Availability Zone in your request. "
    "Launching EC2 instance failed."
)
HOOK_ABANDONED = (
    "Instance failed to complete user's Lifecycle Action: Lifecycle Action with token {token} was "
    "abandoned: Heartbeat Timeout"
)
DIED_STARTING = (
    "Instance became unhealthy while waiting for instance to be in InService state. "
    "Termination Reason: {reason}"
)
ABANDONED = (
    "Instance failed to complete user's Lifecycle Action: Lifecycle Action with token {token} was "
    "abandoned: Lifecycle Action Completed with ABANDON Result"
)
LAUNCH, TERMINATE = "Launch", "Terminate"
HEALTH_CHECK, REPLACE_UNHEALTHY = "HealthCheck", "ReplaceUnhealthy"
PROCESSES = (
    LAUNCH, TERMINATE, "AddToLoadBalancer", "AlarmNotification", "AZRebalance", HEALTH_CHECK,
    "InstanceRefresh", REPLACE_UNHEALTHY, "ScheduledActions",
)  # fmt: skip
USER_SUSPENDED = "User suspended"
ADMINISTRATIVE = "Administrative suspension"
DIFFERENCE = (
    "an instance was started in response to a difference between desired and actual capacity, "
    "increasing the capacity from {have} to {want}."
)
# Why a group ended an instance.
SHRUNK = (
    "an instance was taken out of service in response to a difference between desired and actual "
    "capacity, shrinking the capacity from {have} to {left}."
)
FOUND_GONE = (
    "an instance was taken out of service in response to an EC2 health check indicating it has "
    "been terminated or stopped."
)
USER_HEALTH_CHECK = "an instance was taken out of service in response to a user health-check."
