// Risk of one sample: saturating sum of the weights of the raised flags.
//
//   latency : 0 clocks
//   no flag : 0; Z_HALF and UPSET have no weight
//   rule    : docs/numerics.md, "Risk"
module opd_risk (
  input  opd_reg_pkg::cfg_t cfg_i,
  input  opd_pkg::flags_t   flags_i,
  output logic [7:0]        risk_o
);

  logic [10:0] sum;  // eight weights of 8 bits

  function automatic logic [10:0] weight(logic raised, logic [7:0] value);
    return raised ? 11'(value) : '0;
  endfunction

  always_comb begin
    sum = '0;
    if (flags_i != '0) begin
      sum = weight(flags_i.z, cfg_i.weight_z) +
            weight(flags_i.d2, cfg_i.weight_d2) +
            weight(flags_i.forecast, cfg_i.weight_forecast) +
            weight(flags_i.critical, cfg_i.weight_critical) +
            weight(flags_i.jump, cfg_i.weight_jump) +
            weight(flags_i.nonfinite, cfg_i.weight_nonfinite) +
            weight(flags_i.saturated, cfg_i.weight_saturated) +
            weight(flags_i.warmup, cfg_i.weight_warmup);
    end
    risk_o = sum > 11'd255 ? 8'd255 : sum[7:0];
  end

endmodule : opd_risk
