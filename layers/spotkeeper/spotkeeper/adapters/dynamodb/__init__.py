"""The one table: states, records, controls, the ledger and the load."""
