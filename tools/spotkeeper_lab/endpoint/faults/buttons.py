"""The faults that the page has a button for."""

from spotkeeper_lab.endpoint.faults.values import FAULT

_BUTTONS: tuple[tuple[str, dict[str, object]], ...] = (
    ("Warn one instance", {"do": "loss", "count": 1, "in_s": 120}),
    ("Warn three", {"do": "loss", "count": 3, "in_s": 120}),
    ("Lose one at once", {"do": "loss", "count": 1, "in_s": 0}),
    ("Recommend to rebalance one", {"do": "rebalance"}),
    ("Spot runs dry", {"do": "capacity", "capacity": 0, "in_s": 120}),
    ("Spot is gone in a second", {"do": "capacity", "capacity": 0, "in_s": 1}),
    ("Spot is back", {"do": "capacity", "capacity": 4}),
    ("On-demand is dry, 3 min", {"do": "refuse-launches", "group": "on-demand", "for_s": 180}),
    (
        "Launches are misconfigured, 3 min",
        {"do": "refuse-launches", "group": "spot", "why": "configuration", "for_s": 180},
    ),
    (
        "Quota is used up, 3 min",
        {"do": "refuse-launches", "group": "spot", "why": "quota", "for_s": 180},
    ),
    ("Quota of 8 spot vCPUs", {"do": "quota", "group": "spot", "vcpus": 8}),
    ("No quota", {"do": "quota", "group": "spot"}),
    (
        "Throttle, 1 min",
        {"do": "calls", "action": "autoscaling", "answer": "throttled", "for_s": 60},
    ),
    (
        "Server errors, 1 min",
        {"do": "calls", "action": "autoscaling", "answer": "error", "for_s": 60},
    ),
    (
        "Lose answers, 1 min",
        {"do": "calls", "action": "SetDesiredCapacity", "answer": "lost", "for_s": 60},
    ),
    (
        "Table unreachable, 1 min",
        {"do": "calls", "action": "dynamodb", "answer": "unreachable", "for_s": 60},
    ),
    (
        "Take detaching away, 3 min",
        {"do": "calls", "action": "DetachInstances", "answer": "denied", "for_s": 180},
    ),
    ("Kill the handler", {"do": "kill-function", "function": "HandleInterruption"}),
    ("Events late, 3 min", {"do": "events", "delivery": "late", "late_s": 60, "for_s": 180}),
    ("Events twice, 3 min", {"do": "events", "delivery": "twice", "for_s": 180}),
    ("Events shuffled, 3 min", {"do": "events", "delivery": "shuffled", "for_s": 180}),
    ("No events, 3 min", {"do": "events", "delivery": "never", "for_s": 180}),
    ("Load 2 erlangs", {"do": "load", "erlangs": 2}),
    ("Load 6 erlangs", {"do": "load", "erlangs": 6}),
    ("No load", {"do": "load", "erlangs": 0}),
    ("Logs stop", {"do": "search-logs", "stopped": True}),
    ("Logs again", {"do": "search-logs", "stopped": False}),
)

ORDERS: list[dict[str, object]] = [
    {"label": label, "fault": FAULT.dump_python(FAULT.validate_python(fault), mode="json")}
    for label, fault in _BUTTONS
]
