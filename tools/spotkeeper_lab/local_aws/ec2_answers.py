"""What the simulated cloud answers to EC2's calls, in AWS's words."""

from datetime import datetime
from typing import TYPE_CHECKING

from spotkeeper.adapters.ec2.auto_scaling import DRAINING_TAG
from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import CloudError, InstanceView, Purchase, SpotRequestView
from spotkeeper_lab.cloud.words import PENDING
from spotkeeper_lab.local_aws.filters import filters_of, passes
from spotkeeper_lab.local_aws.wire import Answer, Get, Page, VirtualTime, WireAction

if TYPE_CHECKING:
    from collections.abc import Sequence

_EC2_STATES = {PENDING: "pending"}
SPOT_REQUESTS = Page(usual=1000, most=1000, asked_by="MaxResults")
INSTANCES = Page(usual=1000, most=1000, asked_by="MaxResults")

TAGS = Page(usual=1000, most=1000, asked_by="MaxResults")
PRICES = Page(usual=1000, most=1000, asked_by="MaxResults")
SPOT_USD = 0.35
"""An hour of spot, whatever the type."""

# A terminated instance is shown for so long.
TERMINATED_FOR_S = 3600.0


class Ec2Answers:
    """What the cloud answers; each method takes a reader of parameters."""

    def __init__(self, cloud: Cloud, time: VirtualTime) -> None:
        self._cloud = cloud
        self._time = time

    def actions(self) -> dict[str, WireAction]:
        """The actions of EC2 that the cloud answers."""
        return {
            "describe_spot_instance_requests": WireAction(
                self._describe_spot_requests, SPOT_REQUESTS
            ),
            "create_tags": WireAction(self._create_tags),
            "delete_tags": WireAction(self._delete_tags),
            "describe_instances": WireAction(self._describe_ec2_instances, INSTANCES),
            "terminate_instances": WireAction(self._terminate),
            # This account sets no defaults; moto does not know the call.
            "get_instance_metadata_defaults": WireAction(lambda _: {"AccountLevel": {}}),
        }

    def _describe_spot_requests(self, get: Get) -> Answer:
        filters = {item["Name"]: item.get("Values", item.get("Value")) for item in filters_of(get)}
        codes = filters.get("status-code")
        ids, instances = filters.get("spot-instance-request-id"), filters.get("instance-id")
        return {
            "SpotInstanceRequests": [
                self._spot_request(view)
                for view in self._cloud.spot_requests()
                if (codes is None or view.status_code in codes)
                and (ids is None or view.request_id in ids)
                and (instances is None or view.instance_id in instances)
            ]
        }

    def _spot_request(self, view: SpotRequestView) -> Answer:
        at = self._time.at(view.updated_s)
        return {
            "SpotInstanceRequestId": view.request_id,
            "InstanceId": view.instance_id,
            "State": "closed" if view.status_code.startswith("instance-terminated") else "active",
            "CreateTime": at,
            "Status": {"Code": view.status_code, "UpdateTime": at, "Message": view.status_code},
        }

    def _create_tags(self, get: Get) -> Answer:
        tags = {tag["Key"]: tag["Value"] for tag in get("Tags", [])}
        if gone_at := tags.pop(DRAINING_TAG, ""):
            gone_s = self._time.seconds(datetime.fromisoformat(gone_at))
            self._cloud.drain(get("Resources", []), gone_s)
        self._cloud.tag(get("Resources", []), tags)
        return {}

    def _delete_tags(self, get: Get) -> Answer:
        keys = {tag["Key"] for tag in get("Tags", [])}
        if DRAINING_TAG in keys:
            self._cloud.undrain(get("Resources", []))
        self._cloud.untag(get("Resources", []), keys)
        return {}

    def _describe_ec2_instances(self, get: Get) -> Answer:
        wanted: Sequence[str] = get("InstanceIds", [])
        views = [self._cloud.instance(i) for i in wanted] if wanted else self._visible()
        found = [self._ec2_instance(view) for view in views]
        for item in filters_of(get):
            found = [one for one in found if passes(one, item["Name"], item["Values"])]
        return {"Reservations": [{"Instances": [one]} for one in found]}

    def over_the_wire(self) -> dict[str, WireAction]:
        """The actions that moto has its own answers to, which know nothing of the cloud."""
        return {
            "describe_tags": WireAction(self._describe_tags, TAGS),
            "describe_spot_price_history": WireAction(self._describe_prices, PRICES),
        }

    def _describe_tags(self, get: Get) -> Answer:
        found = [
            dict[str, object](ResourceId=view.instance_id, ResourceType="instance", **tag)
            for view in self._cloud.instances()
            for tag in self._tags(view)
        ]
        for item in filters_of(get):
            name = {"key": "Key", "resource-type": "ResourceType", "resource-id": "ResourceId"}
            if item["Name"] not in name:
                message = f"The filter '{item['Name']}' is not simulated"
                raise CloudError("InvalidParameterValue", message)
            found = [one for one in found if one[name[item["Name"]]] in item["Values"]]
        return {"Tags": found}

    def _describe_prices(self, get: Get) -> Answer:
        """The price that was always in force, in every zone of the groups."""
        filters = {item["Name"]: item["Values"] for item in filters_of(get)}
        pools = {view.pool for view in self._cloud.history()}
        return {
            "SpotPriceHistory": [
                {
                    "AvailabilityZone": zone,
                    "InstanceType": kind,
                    "ProductDescription": "Linux/UNIX",
                    "SpotPrice": f"{SPOT_USD:.6f}",
                    "Timestamp": self._time.start,
                }
                for zone, _, kind in (pool.partition("/") for pool in sorted(pools))
                if kind in filters.get("instance-type", [kind])
            ]
        }

    def _visible(self) -> list[InstanceView]:
        """All that run, and those that ended within the last hour (docs/truth.md)."""
        since_s = self._cloud.now_s - TERMINATED_FOR_S
        return [v for v in self._cloud.history() if v.ended_s is None or v.ended_s >= since_s]

    def _ending(self, view: InstanceView) -> Answer:
        """When and by whom an instance was ended; nothing while it runs."""
        if view.ended_s is None:
            return {}
        at = f"({self._time.at(view.ended_s):%Y-%m-%d %H:%M:%S} GMT)"
        code = "Server.SpotInstanceTermination" if view.lost else "Client.UserInitiatedShutdown"
        told = f"{'Service' if view.lost else 'User'} initiated {at}"
        if view.lost and self._cloud.physics.ends_untold:
            told = f"{code}: Spot instance termination"
        return {"StateTransitionReason": told, "StateReason": {"Code": code, "Message": code}}

    def _ec2_instance(self, view: InstanceView) -> Answer:
        zone, _, kind = view.pool.partition("/")
        state = "terminated" if view.ended_s is not None else _EC2_STATES.get(view.state, "running")
        return {
            "InstanceId": view.instance_id,
            "InstanceType": kind,
            "State": {"Name": state, "Code": 48 if state == "terminated" else 16},
            "Placement": {"AvailabilityZone": zone},
            "LaunchTime": self._time.at(view.launched_s),
            "Tags": self._tags(view) if view.ended_s is None else [],
            **self._ending(view),
            **({"InstanceLifecycle": "spot"} if view.purchase is Purchase.SPOT else {}),
        }

    def _tags(self, view: InstanceView) -> list[dict[str, str]]:
        tags = dict(view.tags)
        if view.group:
            tags["aws:autoscaling:groupName"] = view.group
        if view.gone_s is not None:
            tags[DRAINING_TAG] = self._time.at(view.gone_s).isoformat()
        return [{"Key": key, "Value": value} for key, value in tags.items()]

    def _terminate(self, get: Get) -> Answer:
        instance_ids: Sequence[str] = get("InstanceIds", [])
        self._cloud.terminate(instance_ids)
        state = {"Code": 32, "Name": "shutting-down"}
        return {
            "TerminatingInstances": [
                {"InstanceId": instance_id, "CurrentState": state, "PreviousState": state}
                for instance_id in instance_ids
            ]
        }
