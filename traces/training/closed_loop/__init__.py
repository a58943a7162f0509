"""Live runs of the corpus' scenarios under each remedy, guard among them: docs/closed_loop.md. Run by scripts/closed_loop."""
