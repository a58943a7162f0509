// Published engine: EMA of the magnitude, z-score and second difference, in binary32.
//
// Serial: one adder and one multiplier, with a register behind each, over 8 clocks.
//
//   clock_i | adder                          | multiplier
//   --------+--------------------------------+------------------------------------
//         1 | beta  = 1 - alpha              | tt      = T * T
//         2 | d     = y - m          (delta) |
//         3 | slope = y - last               | product = alpha * delta
//         4 | m'    = m + product            | dd      = delta * delta   (square)
//         5 | d     = y - m'         (AFTER) | product = alpha * square
//         6 | sum   = v + product            | dd      = d * d           (AFTER)
//         7 | sum   = slope' - slope (curve) | v'      = beta * sum
//         8 |                                | product = tt * w          (limit)
//     WRITE | compare
//
// Clock 1 also takes y and the anchor. sum and product keep the latest result of their unit.
//
//   latency      : 8 clocks, then flags and state in the clock of score_i; 0 outside it
//   not usable   : state as it is, no flag
//   first sample : seeds mean and last sample, no flag
//   rule         : docs/numerics.md, "Published engine"
`include "opd_assert.svh"

module opd_published_engine (
  input  logic                      clk_i,
  input  logic                      rst_ni,          // for the assertions only
  input  opd_reg_pkg::cfg_t         cfg_i,
  // The sample, constant from clock 1 to WRITE
  input  logic [3:0]                clock_i,         // clock of COMPUTE, 1..8; else 0
  input  logic                      score_i,         // WRITE
  input  logic                      usable_i,        // finite and not all zeros
  input  logic                      desensitised_i,  // soon after a learning-rate change
  input  logic [2:0]                format_i,        // legal
  input  logic [30:0]               max_mag_i,       // bits of the largest magnitude
  input  logic signed [7:0]         scale_log2_i,
  input  logic [7:0]                age_i,           // before the sample
  input  opd_pkg::published_state_t state_i,         // before the sample
  output opd_pkg::published_state_t state_o,         // after the sample
  output logic                      z_o,
  output logic                      z_half_o,
  output logic                      d2_o
);

  localparam logic [31:0] One = 32'h3F80_0000;

  logic               seed, compute, after;
  logic [31:0]        threshold;       // T
  logic               add, multiply;   // the unit works in this clock
  logic [31:0]        add_a, add_b, sum, multiply_a, multiply_b, product;
  logic signed [9:0]  anchor, anchor_q;
  logic [31:0]        y, y_q;
  logic [31:0]        beta_q, tt_q, d_q, dd_q, mean_q, variance_q, slope_q, sum_q, product_q;

  assign seed    = age_i == '0;
  assign compute = clock_i != '0 && usable_i && !seed;
  assign after   = cfg_i.published_order == opd_reg_pkg::OrderAfter;

  opd_sample_value u_sample_value (
    .valid_i  (clock_i == 4'd1 && usable_i),
    .format_i,
    .max_mag_i,
    .scale_log2_i,
    .seed_i   (seed),
    .anchor_i (state_i.anchor),
    .anchor_o (anchor),
    .y_o      (y)
  );

  function automatic logic [31:0] negative(logic [31:0] value);
    return {!value[31], value[30:0]};
  endfunction

  // The schedule. A unit that rests has operands 0.
  always_comb begin
    add        = 1'b0;
    add_a      = '0;
    add_b      = '0;
    multiply   = 1'b0;
    multiply_a = '0;
    multiply_b = '0;
    threshold  = '0;
    if (compute) begin
      threshold = desensitised_i ? cfg_i.z_threshold_desensitised : cfg_i.z_threshold;
      add       = clock_i != 4'd8;
      multiply  = clock_i != 4'd2;
      unique case (clock_i)
        4'd1: begin
          add_a      = One;
          add_b      = negative(cfg_i.published_alpha);
          multiply_a = threshold;
          multiply_b = threshold;
        end
        4'd2: begin
          add_a = y_q;
          add_b = negative(state_i.mean);
        end
        4'd3: begin
          add_a      = y_q;
          add_b      = negative(state_i.last);
          multiply_a = cfg_i.published_alpha;
          multiply_b = d_q;
        end
        4'd4: begin
          add_a      = state_i.mean;
          add_b      = product_q;
          multiply_a = d_q;
          multiply_b = d_q;
        end
        4'd5: begin
          add_a      = y_q;
          add_b      = negative(mean_q);
          multiply_a = cfg_i.published_alpha;
          multiply_b = dd_q;
        end
        4'd6: begin
          add_a      = state_i.variance;
          add_b      = product_q;
          multiply_a = d_q;
          multiply_b = d_q;
        end
        4'd7: begin
          add_a      = slope_q;
          add_b      = negative(state_i.slope);
          multiply_a = beta_q;
          multiply_b = sum_q;
        end
        4'd8: begin
          multiply_a = tt_q;
          multiply_b = after ? variance_q : state_i.variance;
        end
        default: ;
      endcase
    end
  end

  opd_fp32_add u_add (.valid_i(add), .a_i(add_a), .b_i(add_b), .sum_o(sum));
  opd_fp32_mul u_mul (.valid_i(multiply), .a_i(multiply_a), .b_i(multiply_b), .product_o(product));

  // No reset: each register is written before it is read, in the same sample.
  always_ff @(posedge clk_i) begin
    if (clock_i == 4'd1) begin
      anchor_q <= anchor;
      y_q      <= y;
    end
    if (add) sum_q <= sum;
    if (multiply) product_q <= product;
    if (compute) begin
      unique case (clock_i)
        4'd1: begin
          beta_q <= sum;
          tt_q   <= product;
        end
        4'd2: d_q     <= sum;
        4'd3: slope_q <= sum;
        4'd4: begin
          mean_q <= sum;
          dd_q   <= product;
        end
        4'd5: if (after) d_q  <= sum;
        4'd6: if (after) dd_q <= product;
        4'd7: variance_q <= product;
        default: ;
      endcase
    end
  end

  // Scoring, in WRITE: thresholds in the operand's unit are brought to the operator's.
  logic               judge;                   // flags are possible
  logic signed [11:0] shift;                   // the operator's unit is 2^shift
  logic [30:0]        d2_floor;                // magnitude from which D2 is raised
  logic [31:0]        weight;                  // w
  logic [30:0]        variance_floor, half_limit, d2_threshold;
  logic               scored;
  logic               over_limit, over_half, over_d2, below_floor;

  always_comb begin
    judge          = 1'b0;
    shift          = '0;
    d2_floor       = '0;
    weight         = '0;
    variance_floor = '0;
    half_limit     = '0;
    d2_threshold   = '0;
    if (score_i && usable_i && !seed) begin
      judge  = 1'b1;
      shift  = 12'(anchor_q) + 12'(scale_log2_i) - 12'sd127;
      weight = after ? variance_q : state_i.variance;
      unique case (format_i)
        opd_reg_pkg::FormatFp16:
          d2_floor = 31'h0000_7BFF - (31'(cfg_i.published_d2_floor_shift) << 10);
        opd_reg_pkg::FormatBf16:
          d2_floor = 31'h0000_7F7F - (31'(cfg_i.published_d2_floor_shift) << 7);
        opd_reg_pkg::FormatE4m3:
          d2_floor = 31'h0000_007E - (31'(cfg_i.published_d2_floor_shift) << 3);
        opd_reg_pkg::FormatE5m2:
          d2_floor = 31'h0000_007B - (31'(cfg_i.published_d2_floor_shift) << 2);
        default:
          d2_floor = 31'h7F7F_FFFF - (31'(cfg_i.published_d2_floor_shift) << 23);
      endcase
      variance_floor = opd_pkg::scaled(cfg_i.variance_floor[30:0], shift <<< 1);
      half_limit     = opd_pkg::scaled(product_q[30:0], 12'sd2);
      d2_threshold   = opd_pkg::scaled(
          desensitised_i ? cfg_i.d2_threshold_desensitised[30:0] : cfg_i.d2_threshold[30:0], shift);
    end
  end

  opd_fp32_greater u_limit (
    .valid_i(judge), .a_i(dd_q), .b_i(product_q), .greater_o(over_limit)
  );
  opd_fp32_greater u_half (
    .valid_i(judge), .a_i(dd_q), .b_i({1'b0, half_limit}), .greater_o(over_half)
  );
  opd_fp32_greater u_d2 (
    .valid_i(judge), .a_i({1'b0, sum_q[30:0]}), .b_i({1'b0, d2_threshold}), .greater_o(over_d2)
  );
  opd_fp32_greater u_floor (
    .valid_i(judge), .a_i({1'b0, variance_floor}), .b_i(weight), .greater_o(below_floor)
  );

  always_comb begin
    scored   = 1'b0;
    state_o  = '0;
    z_o      = 1'b0;
    z_half_o = 1'b0;
    d2_o     = 1'b0;
    if (score_i) begin
      state_o = state_i;
      if (usable_i && seed) begin
        state_o = '{anchor: anchor_q, mean: y_q, last: y_q, default: '0};
      end
      if (judge) begin
        state_o  = '{
          anchor: state_i.anchor, mean: mean_q, variance: variance_q, last: y_q, slope: slope_q
        };
        scored   = age_i >= cfg_i.published_min_samples && weight != '0 && !below_floor &&
                   !d_q[31] && d_q[30:0] != '0;
        z_o      = scored && over_limit;
        z_half_o = scored && over_half;
        d2_o     = age_i >= 8'd2 && age_i >= cfg_i.published_min_samples && over_d2 &&
                   max_mag_i >= d2_floor;
      end
    end
  end

  `OPD_ASSERT(FormatIsLegal_A, clock_i != '0 || score_i, 32'(format_i) < opd_pkg::NumFormats)
  `OPD_ASSERT(AlphaIsLegal_A, clock_i == 4'd1,
      cfg_i.published_alpha >= 32'h0080_0000 && cfg_i.published_alpha <= One)
  // docs/numerics.md: y <= 2^48, square and v <= 2^96, limit <= 2^126.
  `OPD_ASSERT(SumIsFinite_A, add, sum[30:23] != '1)
  `OPD_ASSERT(ProductIsFinite_A, multiply, product[30:23] != '1)
  `OPD_ASSERT(VarianceIsNeverNegative_A, score_i, !state_o.variance[31])
  `OPD_ASSERT(MeanIsNeverNegative_A, score_i, !state_o.mean[31])
  `OPD_ASSERT(ZIsOverHalf_A, z_o, z_half_o)

endmodule : opd_published_engine
