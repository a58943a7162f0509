"""Governors of scales: what chooses the loss scale of an FP16 run, and the scale of each FP8 tensor, compared on recorded runs
(docs/governor.md).

  loss_scale   GradScaler, the device's hints, a scale from the forecast baseline
  fp8_scale    static, current and delayed scaling, a scale from the forecast baseline
  what_if      a governor on the maxima of a recorded run
  comparison   all of them on a corpus
"""
