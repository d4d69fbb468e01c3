"""Each function's environment: missing, empty and invalid variables are all named."""

import pytest

from spotkeeper.border.settings import CheckerSettings, CollectSettings, Settings, SettingsError

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
}


@pytest.mark.parametrize("model", MODELS)
def test_a_whole_environment_is_read(model: type[Settings]) -> None:
    settings = model.parse(WHOLE)
    assert (settings.table_name, settings.fleet_documents_path) == (
        "spotkeeper",
        "/spotkeeper/test/fleets",
    )


def test_each_function_reads_what_is_its_own() -> None:
    assert CollectSettings.parse(WHOLE).default_fleet == "ocr"
    assert CheckerSettings.parse(WHOLE).record_days == 7


def test_records_are_kept_for_thirty_days_unless_told_otherwise() -> None:
    without = {name: value for name, value in WHOLE.items() if name != "RECORD_DAYS"}
    assert CheckerSettings.parse(without).record_days == 30


def test_a_missing_variable_is_named_alone() -> None:
    without = {key: value for key, value in WHOLE.items() if key != "TABLE_NAME"}
    with pytest.raises(SettingsError, match=r"^wrong environment: TABLE_NAME: Field required$"):
        Settings.parse(without)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FLEET_DOCUMENTS_PATH", "fleets"),
        ("FLEET_DOCUMENTS_PATH", "/"),
        *(("RECORD_DAYS", days) for days in ("", "0", "366", "1.5")),
    ],
)
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
    assert [name for name in MODELS[model] if f"{name}: " not in str(caught.value)] == []
