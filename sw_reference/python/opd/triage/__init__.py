"""Incidents of a run in words: which operator, since when, how fast, which kind, what would have caught it, what to do
(docs/triage.md).

    history    growth, learning rates, roles of probes: what the statistics of a trace say of the time before
    kinds      which kind of incident it is, and what speaks for it
    incidents  the incidents of a trace, a page each
    page       a page: text, sentence, JSON
    keeper     the last steps of a run that is going on, as a trace
    command    opd triage TRACE
"""
from opd.triage.incidents import of_file, sentences, triage, triage_run
from opd.triage.page import Page, Triage

__all__ = ["Page", "Triage", "of_file", "sentences", "triage", "triage_run"]
