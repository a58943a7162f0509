"""`opd evaluate`: the detectors that opd has to beat, and what each of them says of a corpus of traces.

    command      the command line            corpus     traces and their labels
    detector     what a detector is          reference  forecast and published, computed by the C++ reference
    limits       rules on the distance to the format's limit
    averages     rules on a moving average   maxima     rules on a largest value so far
    incident     what went wrong in a run
    metrics      what a detector did on one run: lead, false alarms, alarms upstream
    log          what it says of one run, step by step
    figures      figures over runs, their intervals, the ROC
    matched      every detector at the same rate of near-limit alarms, its threshold chosen on the tuning half
    goals        what the device is to reach
    tables       the figures as text         report     evaluation.html

Definitions: docs/evaluation.md.
"""
from opd.evaluate.averages import MsprobeTurbulence, OlmoSkipStep, ZClip
from opd.evaluate.detector import Detector
from opd.evaluate.limits import FpCheckerDangerZone, NonfiniteOnly, StaticHeadroom, StaticHeadroomScaled
from opd.evaluate.maxima import MegatronSpike, TransformerEngineAmax
from opd.evaluate.reference import Forecast, Published


def all_detectors() -> list[Detector]:
    """Every detector with its published settings, in the order of the tables. Raises ReferenceMissing."""
    return [Forecast(), Forecast(jump=False), Published("BEFORE"), Published("AFTER"), StaticHeadroom(1), StaticHeadroom(3),
            StaticHeadroomScaled(1), StaticHeadroomScaled(3), FpCheckerDangerZone(), ZClip(), OlmoSkipStep(),
            MsprobeTurbulence(), MegatronSpike(), TransformerEngineAmax(), NonfiniteOnly()]
