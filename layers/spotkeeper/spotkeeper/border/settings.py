"""What the functions read from their environment, each only what it uses."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spotkeeper.border import wrong_fields


class SettingsError(Exception):
    """The environment is incomplete or wrong; names every variable."""


class Settings(BaseModel):
    """What every function reads; the aliases are the names that template.yaml sets."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    table_name: Annotated[str, Field(alias="TABLE_NAME", min_length=1)]
    fleet_documents_path: Annotated[str, Field(alias="FLEET_DOCUMENTS_PATH", pattern=r"^/.+")]

    @classmethod
    def parse(cls, environment: Mapping[str, str]) -> Self:
        """Read an environment; raises `SettingsError` with every wrong variable."""
        try:
            return cls.model_validate(environment)
        except ValidationError as error:
            fields = wrong_fields(error, "environment")
            raise SettingsError(f"wrong environment: {fields}") from error


class CheckerSettings(Settings):
    """What the checkers and handle_interruption read."""

    record_days: Annotated[int, Field(alias="RECORD_DAYS", ge=1, le=365)] = 30
    stack_nonce: Annotated[str, Field(alias="STACK_NONCE", min_length=1)]
    wake_up_queue_url: Annotated[str, Field(alias="WAKE_UP_QUEUE_URL", min_length=1)]


class EventSettings(Settings):
    """What sends events; without a bus none are sent."""

    event_bus: Annotated[str, Field(alias="EVENT_BUS")] = ""
    stack_name: Annotated[str, Field(alias="STACK_NAME")] = ""


class AvailabilitySettings(CheckerSettings, EventSettings):
    """What check_availability and handle_interruption read."""


class HealthSettings(CheckerSettings):
    """What check_health reads."""

    health_queue_url: Annotated[str, Field(alias="HEALTH_QUEUE_URL", min_length=1)]


class CollectSettings(EventSettings):
    """What collect_search_logs reads; the queue is that of another region's home, if any."""

    default_fleet: Annotated[str, Field(alias="DEFAULT_FLEET", min_length=1)]
    home_queue_url: Annotated[str, Field(alias="HOME_QUEUE_URL")] = ""


class ExamineSettings(Settings):
    """What examine_account reads."""

    stack_name: Annotated[str, Field(alias="STACK_NAME", min_length=1)]


class JobSettings(Settings):
    """What keep_jobs reads."""

    bucket: Annotated[str, Field(alias="JOB_BUCKET", min_length=3)]
    launch_template: Annotated[str, Field(alias="JOB_LAUNCH_TEMPLATE_ID", pattern=r"^lt-")]
    template_version: Annotated[str, Field(alias="JOB_LAUNCH_TEMPLATE_VERSION")] = "$Default"
    subnets: Annotated[str, Field(alias="JOB_SUBNET_IDS", pattern=r"^subnet-")]
    topic: Annotated[str, Field(alias="JOB_TOPIC_ARN", min_length=1)]
    kms_key: Annotated[str, Field(alias="JOB_KMS_KEY_ARN")] = ""
    stack_nonce: Annotated[str, Field(alias="STACK_NONCE", min_length=1)]
