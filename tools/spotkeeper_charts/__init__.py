"""Pages that need nothing else: figures, charts over time, scatters, tables; one look for all."""
