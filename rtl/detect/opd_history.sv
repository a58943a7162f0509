// History of one operator, shared by the engines: next state and WARMUP from one sample.
//
//   latency    : 0 clocks, combinational; outputs are 0 unless valid_i
//   not usable : a non-finite sample lengthens the run, any other ends it; neither adds to the age
//   rule       : docs/numerics.md, "Samples"
`include "opd_assert.svh"

module opd_history (
  input  logic              clk_i,        // for the assertions only
  input  logic              rst_ni,       // for the assertions only
  input  opd_reg_pkg::cfg_t cfg_i,
  input  logic              valid_i,
  input  logic              nonfinite_i,  // nonfinite_count > 0
  input  logic              usable_i,     // finite and not all zeros
  input  opd_pkg::history_t state_i,      // before the sample
  output opd_pkg::history_t state_o,      // after the sample
  output logic              warmup_o
);

  logic [7:0] next_run;

  function automatic logic [7:0] increment(logic [7:0] count);
    return count == '1 ? count : count + 8'd1;
  endfunction

  always_comb begin
    next_run = '0;
    state_o  = '0;
    warmup_o = 1'b0;
    if (valid_i) begin
      next_run = increment(state_i.nonfinite_run);
      state_o  = '{age: state_i.age, nonfinite_run: 8'd0};
      if (usable_i) state_o.age = increment(state_i.age);
      if (nonfinite_i) begin
        state_o.nonfinite_run = next_run;
        if (cfg_i.baseline_reseed_run != '0 && next_run >= cfg_i.baseline_reseed_run) begin
          state_o.age = '0;
        end
      end
      warmup_o = state_i.age < cfg_i.baseline_warmup_samples;
    end
  end

  `OPD_ASSERT(UsableIsFinite_A, valid_i && usable_i, !nonfinite_i)
  `OPD_ASSERT(OnlyUsableSamplesAge_A, valid_i && state_o.age > state_i.age, usable_i)

endmodule : opd_history
