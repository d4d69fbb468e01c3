"""Texts of failed launches as users posted them and as the guide lists them, by class."""

from spotkeeper.domain.failure import FailureClass

CAPACITY, PRICE, QUOTA = FailureClass.CAPACITY, FailureClass.PRICE, FailureClass.QUOTA


CONFIGURATION, PERMISSION = FailureClass.CONFIGURATION, FailureClass.PERMISSION


BOOTSTRAP, THROTTLE = FailureClass.BOOTSTRAP, FailureClass.THROTTLE


# Texts of scaling activities as users posted them and as the Auto Scaling guide lists them.
MESSAGES: tuple[tuple[FailureClass, str], ...] = (
    (
        CAPACITY,
        "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due "
        "to your request configuration. Please adjust your request and try again. Launching EC2 "
        "instance failed.",
    ),
    (
        CAPACITY,
        "Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot capacity "
        "available that matches your request. Launching EC2 instance failed.",
    ),
    (
        CAPACITY,
        "There is no Spot capacity available that matches your request. Launching EC2 instance "
        "failed.",
    ),
    (
        CAPACITY,
        "We currently do not have sufficient g4dn.xlarge capacity in the Availability Zone you "
        "requested (us-west-2a). Our system will be working on provisioning additional capacity. "
        "You can currently get g4dn.xlarge capacity by not specifying an Availability Zone in your "
        "request or choosing us-west-2b, us-west-2c. Launching EC2 instance failed.",
    ),
    (
        CAPACITY,
        "Placed Spot instance request: sir-1a2b3c4d. Waiting for instance(s)",
    ),
    (CAPACITY, "Server.InternalError: Internal error on launch"),
    (
        PRICE,
        "Your Spot request price of 0.001 is lower than the minimum required Spot request "
        "fulfillment price of 0.0031. Launching EC2 instance failed.",
    ),
    (QUOTA, "Max spot instance count exceeded. Launching EC2 instance failed."),
    (QUOTA, "Max spot instance count exceeded. Placing Spot instance request failed."),
    (
        QUOTA,
        "Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count "
        "exceeded. Launching EC2 instance failed.",
    ),
    (
        QUOTA,
        "You have requested more vCPU capacity than your current vCPU limit of 1000 allows for "
        "the instance bucket that the specified instance type belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit. "
        "Launching EC2 instance failed.",
    ),
    (
        QUOTA,
        "You have requested more instances (7) than your current instance limit of 6 allows for "
        "the specified instance type. Please visit http://aws.amazon.com/contact-us/ec2-request "
        "to request an adjustment to this limit. Launching EC2 instance failed.",
    ),
    (QUOTA, "20 instance(s) are already running. Launching EC2 instance failed."),
    (
        CONFIGURATION,
        "Could not launch Spot Instances. InvalidFleetConfiguration - Your requested instance type "
        "(p3.8xlarge) is not supported in your requested Availability Zone (us-east-2c). Launching "
        "EC2 instance failed.",
    ),
    (
        CONFIGURATION,
        "Could not launch On-Demand Instances. InvalidParameterCombination - The specified "
        "instance type is not eligible for Free Tier. Launching EC2 instance failed.",
    ),
    (
        CONFIGURATION,
        "The requested configuration is currently not supported. Please check the documentation "
        "for supported configurations. Launching EC2 instance failed.",
    ),
    (
        CONFIGURATION,
        "The security group my-group does not exist. Launching EC2 instance failed.",
    ),
    (CONFIGURATION, "The key pair my-key does not exist. Launching EC2 instance failed."),
    (
        CONFIGURATION,
        "The requested Availability Zone is no longer supported. Please retry your request by not "
        "specifying an Availability Zone or choosing us-east-1a, us-east-1b. Launching EC2 "
        "instance failed.",
    ),
    (
        CONFIGURATION,
        "Your requested instance type (g4dn.xlarge) is not supported in your requested "
        "Availability Zone (us-east-1e). Please retry your request by not specifying an "
        "Availability Zone or choosing us-east-1a, us-east-1b. Launching EC2 instance failed.",
    ),
    (
        CONFIGURATION,
        "Invalid device name upload. Launching EC2 instance failed.",
    ),
    (PERMISSION, "Client.InternalError: Client error on launch."),
    (
        PERMISSION,
        "Access denied when attempting to assume role "
        "arn:aws:iam::123456789012:role/aws-service-role/autoscaling.amazonaws.com/"
        "AWSServiceRoleForAutoScaling. Validating load balancer configuration failed.",
    ),
    (
        PERMISSION,
        "You are not authorized to perform this operation. Launching EC2 instance failed.",
    ),
    (
        PERMISSION,
        "Could not launch Spot Instances. AuthFailure.ServiceLinkedRoleCreationNotPermitted - The "
        "provided credentials do not have permission to create the service-linked role for EC2 "
        "Spot Instances. Launching EC2 instance failed.",
    ),
    (
        BOOTSTRAP,
        "Instance failed to complete user's Lifecycle Action: Lifecycle Action with token "
        "71514b9d-6a40-4b26-8523-05e7eEXAMPLE was abandoned: Lifecycle Action Completed with "
        "ABANDON Result",
    ),
    (
        BOOTSTRAP,
        "Instance failed to complete user's Lifecycle Action: Lifecycle Action with token "
        "71514b9d-6a40-4b26-8523-05e7eEXAMPLE was abandoned: Lifecycle Action Timeout Exceeded",
    ),
    (
        QUOTA,
        "Instance became unhealthy while waiting for instance to be in InService state. "
        "Termination Reason: Client.VolumeLimitExceeded: Volume limit exceeded",
    ),
    (
        QUOTA,
        "Your quota allows for 0 more running instance(s). You requested at least 1. Launching "
        "EC2 instance failed.",
    ),
    (
        QUOTA,
        "You've reached your quota for maximum Fleet Requests for this account. Launching EC2 "
        "instance failed.",
    ),
    (
        QUOTA,
        "Could not launch On-Demand Instances. MaxIOPSLimitExceeded - You have reached the limit "
        "on your IOPS usage for this region. Launching EC2 instance failed.",
    ),
    (
        CAPACITY,
        "Instance became unhealthy while waiting for instance to be in InService state. "
        "Termination Reason: Server.SpotInstanceTermination: Spot instance termination",
    ),
    (
        CAPACITY,
        "Instance became unhealthy while waiting for instance to be in InService state. "
        "Termination Reason: Server.InsufficientInstanceCapacity: Insufficient capacity to launch",
    ),
    (
        BOOTSTRAP,
        "Instance became unhealthy while waiting for instance to be in InService state. "
        "Termination Reason: Client.InstanceInitiatedShutdown: Instance initiated shutdown",
    ),
    (
        BOOTSTRAP,
        "Instance became unhealthy while waiting for instance to be in InService state. "
        "Termination Reason: Client.UserInitiatedShutdown: User initiated shutdown",
    ),
    (
        PERMISSION,
        "Instance became unhealthy while waiting for instance to be in InService state. "
        "Termination Reason: Client.InvalidKMSKey.InvalidState: The KMS key provided is in an "
        "incorrect state",
    ),
    (
        PERMISSION,
        "Instance became unhealthy while waiting for instance to be in InService state. "
        "Termination Reason: Client.InternalError: Client error on launch",
    ),
    (
        CONFIGURATION,
        "Instance became unhealthy while waiting for instance to be in InService state. "
        "Termination Reason: Client.InvalidSnapshot.NotFound: Snapshot not found",
    ),
    (
        CONFIGURATION,
        "'kubernetes.io/cluster/my-cluster' is not a valid tag key. Tag keys must match pattern "
        "([0-9a-zA-Z\\\\-_+=,.@:]{1,255}), and must not be a reserved name ('.', '..', '_index'). "
        "Launching EC2 instance failed.",
    ),
    (
        CONFIGURATION,
        "Could not launch Spot Instances. InvalidParameterValue - Value (gpu-worker) for parameter "
        "iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name. Launching EC2 "
        "instance failed.",
    ),
    (
        CONFIGURATION,
        "Value (gpu-worker) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance "
        "Profile name. Launching EC2 instance failed.",
    ),
    (
        CONFIGURATION,
        "Could not launch Spot Instances. InvalidBlockDeviceMapping - Volume of size 22GB is "
        "smaller than  snapshot 'snap-0b5c5ea11d58e1fec', expect size >= 30GB. Launching EC2 "
        "instance failed.",
    ),
    (THROTTLE, "Request limit exceeded. Launching EC2 instance failed."),
    (
        THROTTLE,
        "Could not launch Spot Instances. RequestLimitExceeded - Request limit exceeded. Launching "
        "EC2 instance failed.",
    ),
    (
        THROTTLE,
        "Could not launch Spot Instances. EC2ThrottledException - Please slow down. Launching EC2 "
        "instance failed.",
    ),
    (THROTTLE, "Rate exceeded. Launching EC2 instance failed."),
)
