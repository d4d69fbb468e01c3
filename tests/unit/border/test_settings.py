"""Each function's environment: missing, empty and invalid variables are all named."""

import pytest

from spotkeeper.border.settings import CheckerSettings, CollectSettings, Settings, SettingsError

WHOLE = {
    "TABLE_NAME": "spotkeeper",
    "FLEET_DOCUMENTS_PATH": "/spotkeeper/test/fleets",
    "DEFAULT_FLEET": "ocr",
    "RECORD_DAYS": "7",
    "WAKE_UP_QUEUE_URL": "https://sqs.us-west-2.amazonaws.com/123456789012/wake-ups",
    "PATH": "/usr/bin",
}
MODELS: dict[type[Settings], tuple[str, ...]] = {
    Settings: ("TABLE_NAME", "FLEET_DOCUMENTS_PATH"),
    CheckerSettings: ("TABLE_NAME", "FLEET_DOCUMENTS_PATH", "WAKE_UP_QUEUE_URL"),
    CollectSettings: ("TABLE_NAME", "FLEET_DOCUMENTS_PATH", "DEFAULT_FLEET"),
}
REQUIRED = [(model, name) for model, names in MODELS.items() for name in names]


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


@pytest.mark.parametrize(("model", "name"), REQUIRED)
def test_a_missing_variable_is_named(model: type[Settings], name: str) -> None:
    without = {key: value for key, value in WHOLE.items() if key != name}
    with pytest.raises(SettingsError, match=f"^wrong environment: {name}: Field required$"):
        model.parse(without)


@pytest.mark.parametrize(("model", "name"), REQUIRED)
def test_an_empty_variable_is_named(model: type[Settings], name: str) -> None:
    with pytest.raises(SettingsError, match=f"^wrong environment: {name}: "):
        model.parse(WHOLE | {name: ""})


@pytest.mark.parametrize(
    ("model", "name", "value"),
    [
        *((model, "FLEET_DOCUMENTS_PATH", value) for model in MODELS for value in ("fleets", "/")),
        *((CheckerSettings, "RECORD_DAYS", v) for v in ("", "0", "366", "-1", "1.5", "many")),
    ],
)
def test_an_invalid_variable_is_named(model: type[Settings], name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^wrong environment: {name}: "):
        model.parse(WHOLE | {name: value})


@pytest.mark.parametrize("model", MODELS)
def test_all_wrong_variables_are_named_at_once(model: type[Settings]) -> None:
    with pytest.raises(SettingsError) as caught:
        model.parse({})
    assert [name for name in MODELS[model] if f"{name}: " not in str(caught.value)] == []
