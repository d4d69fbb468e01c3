"""All that knows the inside of ministack; `tests/endpoint` tests each over the wire."""
