"""`opd calibrate`: register settings for a wanted false-alarm rate, from healthy runs, and how far they can be trusted.

    command      the command line            fields     which registers are searched, in one table
    evidence     traces and what the device raises on them      bounds     what so many alarms say of the rate
    search       the most sensitive settings that keep the rate
    calibration  both engines, leave one run out, near-limit runs, gradient norm     tables     the text

Definitions and method: docs/calibration.md.
"""
