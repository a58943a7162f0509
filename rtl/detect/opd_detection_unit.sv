// Detection unit: scores one completion after another, and runs software's commands between two.
//
//   READ -> COMPUTE (8 clocks, only with the published engine) -> WRITE -> READ
//   READ -> COMMAND -> READ, before any completion that waits
//
// READ pops the head of the queue and reads the operator's state; WRITE has flags, risk and new state
// and writes them. One memory port serves both. The mode in the operator's word is the one that
// counts; the mode register is compared with it, and stands in for it when the word is corrupt. The
// controller is outside: it gets the sample in WRITE and returns its part of the state in the same
// clock.
//
//   latency    : popped at edge k, scored before and written at edge k + 1, or k + 9
//   throughput : 1 completion per 2 clocks, or 10 with the published engine; 1 command per 2 clocks
//   idle       : stays in READ
//   rule       : docs/architecture.md, "Timing contract", "Registers in time"; docs/controller.md
`include "opd_assert.svh"

module opd_detection_unit #(
  parameter  int unsigned NumOps          = 256,  // operators, 1..65536
  parameter  int unsigned ForecastEngine  = 1,    // 1 = present
  parameter  int unsigned PublishedEngine = 1,    // 1 = present
  localparam int unsigned OpWidth         = NumOps > 1 ? $clog2(NumOps) : 1  // derived
) (
  input  logic                           clk_i,
  input  logic                           rst_ni,
  input  opd_reg_pkg::cfg_t              cfg_i,
  input  opd_pkg::learning_rate_change_t learning_rate_change_i,
  // Queue
  input  logic                           queue_empty_i,
  input  opd_pkg::completion_t           queue_head_i,
  output logic                           queue_pop_o,
  // Command of software, constant while pending
  input  logic                           command_pending_i,
  input  opd_pkg::command_t              command_i,
  output logic                           command_done_o,   // COMMAND ends at the coming edge
  output opd_pkg::op_state_t             command_state_o,  // then: after the command
  // Scored sample, in WRITE
  output logic                           sample_valid_o,
  output opd_pkg::completion_t           sample_o,
  output opd_pkg::flags_t                flags_o,
  output logic [7:0]                     risk_o,
  // Controller
  output logic                           judged_o,         // sample of an enabled operator
  output logic                           lost_o,           // its state was lost
  output opd_pkg::control_state_t        control_state_o,  // before the sample
  input  opd_pkg::control_state_t        control_state_i,  // after the sample
  // Mode registers
  output logic [OpWidth-1:0]             op_o,             // of the sample or command
  input  opd_reg_pkg::mode_e             mode_i,           // register of op_o
  input  logic                           mode_corrupt_i,
  output logic                           mode_write_o,     // sample or command
  output opd_reg_pkg::mode_e             old_mode_o,       // before it, after repair
  output opd_reg_pkg::mode_e             new_mode_o,       // written
  output logic                           upset_o           // it found something corrupt
);

  `OPD_ASSERT_PARAM(an_engine_is_present, ForecastEngine != 0 || PublishedEngine != 0)

  localparam logic [3:0] ComputeClocks = 4'd8;

  typedef enum logic [1:0] {StRead, StCompute, StWrite, StCommand} state_e;

  state_e               state_d, state_q;
  logic [3:0]           clock_d, clock_q;  // of COMPUTE, 1..8; else 0
  logic                 command_read;      // the command's operator is read
  opd_pkg::completion_t sample_q;
  logic                 desensitised, desensitised_q;
  logic [31:0]          since_change;      // steps, mod 2^32
  logic                 nonfinite, usable;

  always_comb begin
    state_d        = state_q;
    clock_d        = '0;
    queue_pop_o    = 1'b0;
    command_read   = 1'b0;
    command_done_o = 1'b0;
    sample_valid_o = 1'b0;
    unique case (state_q)
      // StRead: wait for a command or a completion; take it and read the state of its operator.
      StRead: begin
        if (command_pending_i) begin
          command_read = 1'b1;
          state_d      = StCommand;
        end else if (!queue_empty_i) begin
          queue_pop_o = 1'b1;
          state_d     = PublishedEngine != 0 ? StCompute : StWrite;
          clock_d     = PublishedEngine != 0 ? 4'd1 : 4'd0;
        end
      end
      // StCompute: the published engine works through its schedule.
      StCompute: begin
        if (clock_q == ComputeClocks) state_d = StWrite;
        else                          clock_d = clock_q + 4'd1;
      end
      // StWrite: everything is known; write at the next edge.
      StWrite: begin
        sample_valid_o = 1'b1;
        state_d        = StRead;
      end
      // StCommand: change what was read; write at the next edge.
      StCommand: begin
        command_done_o = 1'b1;
        state_d        = StRead;
      end
      default: state_d = StRead;
    endcase
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      state_q <= StRead;
      clock_q <= '0;
    end else begin
      state_q <= state_d;
      clock_q <= clock_d;
    end
  end

  assign since_change = queue_head_i.descriptor.step - learning_rate_change_i.step;
  assign desensitised = learning_rate_change_i.valid &&
                        since_change < 32'(cfg_i.desensitise_steps);

  always_ff @(posedge clk_i) begin
    if (queue_pop_o) begin
      sample_q       <= queue_head_i;
      desensitised_q <= desensitised;
    end
  end

  assign nonfinite = sample_q.summary.nonfinite_count != '0;
  assign usable    = !nonfinite && sample_q.summary.max_mag != '0;

  // ---- State: read, repaired, written
  opd_pkg::op_state_t  word, found, written;
  logic                word_corrupt;
  logic [OpWidth-1:0]  op;
  logic                active;  // COMPUTE, WRITE or COMMAND

  always_comb begin
    op = sample_q.descriptor.op[OpWidth-1:0];
    if (queue_pop_o) op = queue_head_i.descriptor.op[OpWidth-1:0];
    if (command_read || command_done_o) op = command_i.op[OpWidth-1:0];
  end

  opd_state_memory #(
    .NumOps         (NumOps),
    .ForecastEngine (ForecastEngine),
    .PublishedEngine(PublishedEngine)
  ) u_state_memory (
    .clk_i,
    .rst_ni,
    .read_i   (queue_pop_o || command_read),
    .write_i  (mode_write_o),
    .op_i     (op),
    .state_i  (written),
    .state_o  (word),
    .corrupt_o(word_corrupt)
  );

  assign active = state_q != StRead;

  always_comb begin
    found   = word;
    lost_o  = 1'b0;
    upset_o = 1'b0;
    if (active) begin
      lost_o = word_corrupt || word.control.mode > opd_reg_pkg::ModeSafe;
      if (lost_o) begin
        found              = '0;
        found.control.mode = mode_corrupt_i ? opd_reg_pkg::ModeSafe : mode_i;
      end
      upset_o = mode_write_o && (lost_o || mode_corrupt_i || mode_i != found.control.mode);
    end
  end

  // ---- Score
  opd_pkg::history_t         history;
  opd_pkg::forecast_state_t  forecast_state;
  opd_pkg::published_state_t published_state;
  logic                      warmup, forecast, critical, jump, z, z_half, d2;

  assign judged_o = sample_valid_o && cfg_i.control_enable[0] && !found.control.disabled;

  opd_history u_history (
    .clk_i,
    .rst_ni,
    .cfg_i,
    .valid_i    (judged_o),
    .nonfinite_i(nonfinite),
    .usable_i   (usable),
    .state_i    (found.history),
    .state_o    (history),
    .warmup_o   (warmup)
  );

  if (ForecastEngine != 0) begin : gen_forecast
    logic signed [opd_pkg::CodeWidth-1:0] code, code_q;  // log2 code of the sample

    // The logarithm is taken on the way out of the queue, which halves the path in WRITE.
    opd_log2_code u_log2_code (
      .format_i (queue_head_i.descriptor.format),
      .max_mag_i(queue_head_i.summary.max_mag),
      .code_o   (code)
    );

    always_ff @(posedge clk_i) begin
      if (queue_pop_o) code_q <= code;
    end

    opd_forecast_engine u_forecast_engine (
      .clk_i,
      .rst_ni,
      .cfg_i,
      .valid_i       (judged_o),
      .usable_i      (usable),
      .desensitised_i(desensitised_q),
      .format_i      (sample_q.descriptor.format),
      .scale_log2_i  (sample_q.descriptor.scale_log2),
      .code_i        (code_q),
      .age_i         (found.history.age),
      .state_i       (found.forecast),
      .state_o       (forecast_state),
      .forecast_o    (forecast),
      .critical_o    (critical),
      .jump_o        (jump)
    );
  end else begin : gen_no_forecast
    assign forecast_state             = '0;
    assign {forecast, critical, jump} = '0;
  end

  if (PublishedEngine != 0) begin : gen_published
    opd_published_engine u_published_engine (
      .clk_i,
      .rst_ni,
      .cfg_i,
      .clock_i       (clock_q),
      .score_i       (judged_o),
      .usable_i      (usable),
      .desensitised_i(desensitised_q),
      .format_i      (sample_q.descriptor.format),
      .max_mag_i     (sample_q.summary.max_mag),
      .scale_log2_i  (sample_q.descriptor.scale_log2),
      .age_i         (found.history.age),
      .state_i       (found.published),
      .state_o       (published_state),
      .z_o           (z),
      .z_half_o      (z_half),
      .d2_o          (d2)
    );
  end else begin : gen_no_published
    assign published_state = '0;
    assign {z, z_half, d2} = '0;
  end

  always_comb begin
    flags_o = '0;
    if (sample_valid_o) begin
      flags_o.upset = upset_o;
      if (judged_o) begin
        flags_o.z_half    = z_half;
        flags_o.warmup    = warmup;
        flags_o.saturated = sample_q.summary.saturated_count != '0;
        flags_o.nonfinite = nonfinite;
        flags_o.jump      = jump;
        flags_o.critical  = critical;
        flags_o.forecast  = forecast;
        flags_o.d2        = d2;
        flags_o.z         = z;
      end
    end
  end

  opd_risk u_risk (
    .cfg_i,
    .flags_i(flags_o),
    .risk_o
  );

  // ---- What is written: after the command, after a sample that is judged, or what was found
  always_comb begin
    written = found;
    if (command_done_o) begin
      unique case (command_i.command)
        opd_reg_pkg::CommandRead:   written = found;
        opd_reg_pkg::CommandClear:  written = '0;
        opd_reg_pkg::CommandReseed: written = '{control: found.control, default: '0};
        default: begin
          written.control.mode     = command_i.mode;
          written.control.locked   = command_i.locked;
          written.control.disabled = command_i.disabled;
          written.control.timer    = '0;
        end
      endcase
    end else if (judged_o) begin
      written = '{
        history: history, forecast: forecast_state, published: published_state,
        control: control_state_i
      };
    end
  end

  assign command_state_o = written;
  assign sample_o        = sample_q;
  assign control_state_o = found.control;
  assign op_o            = op;
  assign mode_write_o    = sample_valid_o || command_done_o;
  assign old_mode_o      = found.control.mode;
  assign new_mode_o      = written.control.mode;

  `OPD_ASSERT(SampleIsLegal_A, sample_valid_o, 32'(sample_q.descriptor.op) < NumOps)
  `OPD_ASSERT(CommandIsLegal_A, command_done_o,
      32'(command_i.op) < NumOps && command_i.mode <= opd_reg_pkg::ModeSafe)
  `OPD_ASSERT(CommandIsHeld_A, command_done_o, command_pending_i)
  `OPD_ASSERT(ClockOnlyInCompute_A, clock_q != '0, state_q == StCompute)
  `OPD_ASSERT(NotJudgedChangesNothing_A, sample_valid_o && !judged_o, written == found)

endmodule : opd_detection_unit
