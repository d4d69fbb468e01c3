"""The comparison with a machine of one's own as text, and as JSON."""

import json
import math
from dataclasses import asdict

from spotkeeper_operator.money.breakeven import Breakeven
from spotkeeper_operator.text import labelled


def breakeven_text(found: Breakeven) -> str:
    """Say when a machine pays for itself; USD."""
    months = "never: the cloud costs no more than power and hosting"
    if found.months is not None:
        months = f"after {found.months:.2f} months"
    rows = [
        ("pays for itself", months),
        ("cloud", f"{found.cloud_month:.2f} a month"),
        ("power", f"{found.power_month:.2f} a month"),
        ("hosting", f"{found.hosting_month:.2f} a month"),
        ("needed use", _use(found.needed_utilisation)),
        ("own machine", f"{found.own_hour:.4f} an hour at work, over its life"),
        ("1,000 requests", _requests(found)),
    ]
    return "\n".join(line for row in rows for line in labelled(*row, indent=0, hang=17)) + "\n"


def breakeven_json(found: Breakeven) -> str:
    """The same for programs; `needed_utilisation` is null where no use would be enough."""
    values = asdict(found)
    if math.isinf(found.needed_utilisation):
        values["needed_utilisation"] = None
    return json.dumps(values, indent=2) + "\n"


def _use(share: float) -> str:
    if share > 1:
        return "more than all the time: over its life the cloud is cheaper"
    return f"{share:.1%} of the time, to be cheaper over its life"


def _requests(found: Breakeven) -> str:
    if found.own_thousand is None or found.cloud_thousand is None:
        return "give --own-requests and --cloud-requests an hour (docs/savings.md)"
    return f"{found.own_thousand:.4f} on the machine, {found.cloud_thousand:.4f} in the cloud"
