"""Scripts that know nothing of opd: `opd capture -- COMMAND` and `opd guard -- COMMAND` run them with the one or the other inside."""
