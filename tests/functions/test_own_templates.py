"""A type of a group may have a launch template of its own, such as one for ARM: it is no trial."""

from dataclasses import replace

from functions.check_availability.app import handler as check_availability
from functions.check_health.app import handler as check_health
from spotkeeper_lab.traces.market import market_of
from tests.functions.conftest import A, StageOf

ARM = "us-east-1b/g5g.xlarge"


def test_instances_of_another_launch_template_are_neither_compared_nor_covered(
    stage_of: StageOf,
) -> None:
    stage = stage_of(("ocr",), desired=2)
    group = stage.cloud._group("ocr-spot")
    own = {"g5g.xlarge": "lt-00000000000000a12/3"}
    group.spec = replace(group.spec, template="7", pools=(A, ARM), own_templates=own)
    group.template = "7"
    for machine in group.members.values():
        machine.template = "7"
    group.touch()
    # What is launched from now on is of the other type.
    stage.cloud.set_market(market_of("arm", 86_400.0, {A: ((0.0, 2),), ARM: ((0.0, 9),)}))
    stage.at(660)
    stage.cloud.set_desired("ocr-spot", 4)
    for _ in range(8):
        stage.serve("ocr", 8.0, 6)
        stage.call(check_health)
        stage.call(check_availability)
        stage.at(stage.cloud.now_s + 60)
    there = {i.template for i in stage.cloud.group("ocr-spot").instances}
    assert there == {"7", "lt-00000000000000a12/3"}
    records = stage.records("ocr")
    assert {r["availability"]["on_demand_desired"] for r in records if r.get("availability")} == {0}
