"""Spot placement scores, remembered for a day: AWS scores a few new configurations a day only.

pk score#FLEET  sk score
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from spotkeeper.adapters.doctor.looking import look
from spotkeeper.domain.doctor.facts import GroupFacts, Unseen
from spotkeeper.domain.fleet import Fleet

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_ec2 import EC2Client

KEPT = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementScores:
    """Asks for scores of fleets' spot groups, each at most once a day."""

    ec2: "EC2Client"
    dynamodb: "DynamoDBClient"
    table: str

    def of(
        self, fleets: Iterable[Fleet], groups: Mapping[str, GroupFacts], now: datetime
    ) -> Mapping[str, int] | Unseen:
        """Score each fleet's `spot_max`, of 10; fleets whose types are not named are left out."""
        asked = {
            fleet.name: (fleet.bounds.spot_max, tuple(sorted(groups[fleet.spot_group].types)))
            for fleet in fleets
            if fleet.spot_group in groups and fleet.bounds.spot_max
        }
        return look(
            "ec2:GetSpotPlacementScores",
            lambda: {
                name: score
                for name, (capacity, types) in asked.items()
                if types and (score := self._score(name, capacity, types, now)) is not None
            },
        )

    def _score(
        self, fleet: str, capacity: int, types: tuple[str, ...], now: datetime
    ) -> int | None:
        configuration = f"{capacity} of {', '.join(types)}"
        key = {"pk": {"S": f"score#{fleet}"}, "sk": {"S": "score"}}
        kept = self.dynamodb.get_item(TableName=self.table, Key=key).get("Item", {})
        if (
            kept.get("configuration", {}).get("S") == configuration
            and now - datetime.fromisoformat(kept["at"]["S"]) < KEPT
        ):
            return int(kept["score"]["N"])
        score = self._asked(capacity, types)
        if score is not None:
            self.dynamodb.put_item(
                TableName=self.table,
                Item={
                    **key,
                    "configuration": {"S": configuration},
                    "score": {"N": str(score)},
                    "at": {"S": now.isoformat()},
                    "expires_at": {"N": str(int((now + KEPT).timestamp()))},
                },
            )
        return score

    def _asked(self, capacity: int, types: tuple[str, ...]) -> int | None:
        region = self.ec2.meta.region_name
        answer = self.ec2.get_spot_placement_scores(
            InstanceTypes=list(types),
            TargetCapacity=capacity,
            SingleAvailabilityZone=False,
            RegionNames=[region],
        )
        scores = {each["Region"]: each["Score"] for each in answer["SpotPlacementScores"]}
        return scores.get(region)
