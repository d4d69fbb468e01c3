"""Each function's environment: missing, empty and invalid variables are all named."""

import pytest

from spotkeeper.border.settings import (
    CheckerSettings,
    CollectSettings,
    ExamineSettings,
    Settings,
    SettingsError,
)

WHOLE = {
    "TABLE_NAME": "spotkeeper",
    "FLEET_DOCUMENTS_PATH": "/spotkeeper/test/fleets",
    "DEFAULT_FLEET": "ocr",
    "RECORD_DAYS": "7",
    "WAKE_UP_QUEUE_URL": "https://sqs.us-west-2.amazonaws.com/123456789012/wake-ups",
    "STACK_NONCE": "51af3dc0-da77-11e4-872e-1234567db123",
    "PATH": "/usr/bin",
}
MODELS: dict[type[Settings], tuple[str, ...]] = {
    Settings: ("TABLE_NAME", "FLEET_DOCUMENTS_PATH"),
    CheckerSettings: ("TABLE_NAME", "FLEET_DOCUMENTS_PATH", "STACK_NONCE", "WAKE_UP_QUEUE_URL"),
    CollectSettings: ("TABLE_NAME", "FLEET_DOCUMENTS_PATH", "DEFAULT_FLEET"),
    ExamineSettings: ("STACK_NAME",),
}


@pytest.mark.parametrize(
    ("name", "value"),
    [("FLEET_DOCUMENTS_PATH", "fleets"), ("FLEET_DOCUMENTS_PATH", "/"),
     *(("RECORD_DAYS", days) for days in ("", "0", "366", "1.5"))],
)  # fmt: skip
def test_an_invalid_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^wrong environment: {name}: "):
        CheckerSettings.parse(WHOLE | {name: value})


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("empty", [True, False])
def test_all_missing_and_empty_variables_are_named_at_once(
    model: type[Settings], empty: bool
) -> None:
    with pytest.raises(SettingsError) as caught:
        model.parse(dict.fromkeys(MODELS[model], "") if empty else {})
    assert all(f"{name}: " in str(caught.value) for name in MODELS[model])
