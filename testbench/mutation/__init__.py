"""Mutation testing of the repository's own sources: scripts/mutate, docs/mutation.md."""
