"""opd: on-chip overflow-precursor detector, Python side."""
