"""A deployed stack: its outputs, parameters and resources, by CloudFormation."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.ports import Gone

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient

# Below it every stack has a folder of its name.
DOCUMENTS_ROOT = "/spotkeeper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What CloudFormation knows of a stack; `resources` are (type, physical id) by logical id."""

    name: str
    outputs: Mapping[str, str]
    parameters: Mapping[str, str]
    resources: Mapping[str, tuple[str, str]]
    status: str = ""
    id: str = ""

    @property
    def documents_path(self) -> str:
        """Where the fleet documents are, in Parameter Store."""
        return f"{DOCUMENTS_ROOT}/{self.name}/fleets"

    @property
    def nonce(self) -> str:
        """Return the last part of the stack's id, which its resources carry as a tag."""
        return self.id.rpartition("/")[2]

    @property
    def table(self) -> str:
        """The table's name; raises `Gone` for a stack that is no Spotkeeper."""
        try:
            return self.outputs["TableName"]
        except KeyError:
            message = (
                f"stack {self.name} ({self.status}) has no output TableName: it is not a "
                "stack of Spotkeeper, or not deployed yet"
            )
            raise Gone(message) from None

    def physical_ids(self, resource_type: str) -> tuple[str, ...]:
        """List the stack's resources of one type."""
        return tuple(
            physical for kind, physical in self.resources.values() if kind == resource_type
        )


class StackReader:
    """Reads stacks."""

    def __init__(self, cloudformation: "CloudFormationClient") -> None:
        """Take a typed client; nothing is called yet."""
        self._cloudformation = cloudformation

    def outputs(self, name: str) -> Stack:
        """Read a stack's outputs and parameters alone, by one call; raises `Gone`."""
        region = self._cloudformation.meta.region_name
        with aws_errors(f"describing stack {name} in {region}"):
            try:
                (stack,) = self._cloudformation.describe_stacks(StackName=name)["Stacks"]
            except ClientError as error:
                # CloudFormation answers its catch-all code; only the words tell.
                if "does not exist" not in error.response["Error"].get("Message", ""):
                    raise
                message = f"there is no stack {name} in {region}: give --stack and --region"
                raise Gone(message) from error
        return Stack(
            name=name,
            outputs={o["OutputKey"]: o["OutputValue"] for o in stack.get("Outputs", [])},
            parameters={
                p["ParameterKey"]: p.get("ParameterValue", "") for p in stack.get("Parameters", [])
            },
            resources={},
            status=stack["StackStatus"],
            id=stack.get("StackId", ""),
        )

    def whole(self, name: str) -> Stack:
        """Read a stack with its resources."""
        stack = self.outputs(name)
        pages = self._cloudformation.get_paginator("list_stack_resources").paginate(StackName=name)
        with aws_errors(f"listing the resources of stack {name}"):
            resources = {
                r["LogicalResourceId"]: (r["ResourceType"], r.get("PhysicalResourceId", ""))
                for page in pages
                for r in page["StackResourceSummaries"]
            }
        return replace(stack, resources=resources)
