// Registers of the device behind APB4: configuration, commands, status and the interrupt pin.
//
// opd_regblock (generated) holds the registers. An access that is refused never reaches it; that is
// decided in the setup clock, on the values of the access clock, so every output comes from
// registers.
//
//   latency : no wait states; read data are the register values of the access clock, a write takes
//             effect at the edge that ends it, a pulse (clear, pop) acts at the edge after that
//   refused : pslverr = 1, prdata = 0, and nothing changes: no register at the address, wrong
//             direction, partial strobe, value out of range, OP_COMMAND while busy or for an
//             operator that does not exist
//   idle    : pready = 0, prdata = 0, pslverr = 0
//   rule    : docs/architecture.md, "Registers in time"; docs/registers.md
`include "opd_assert.svh"

module opd_registers #(
  parameter int unsigned NumOps          = 256,  // 1..65536
  parameter int unsigned DatapathWidth   = 512,  // 32..512 bits
  parameter int unsigned NumStreams      = 4,    // 1..256
  parameter int unsigned QueueDepth      = 8,    // 1..255
  parameter int unsigned CounterWidth    = 32,   // 2..32 bits
  parameter int unsigned EventDepth      = 16,   // 1..255
  parameter int unsigned ForecastEngine  = 1,    // 0, 1
  parameter int unsigned PublishedEngine = 1     // 0, 1
) (
  input  logic                           clk_i,
  input  logic                           rst_ni,
  // APB4
  input  logic                           apb_psel_i,
  input  logic                           apb_penable_i,
  input  logic                           apb_pwrite_i,
  input  logic [11:0]                    apb_paddr_i,   // bytes
  input  logic [31:0]                    apb_pwdata_i,
  input  logic [3:0]                     apb_pstrb_i,
  output logic                           apb_pready_o,  // 1 in the access clock only
  output logic [31:0]                    apb_prdata_o,
  output logic                           apb_pslverr_o,
  // To the device
  output opd_reg_pkg::cfg_t              cfg_o,
  output opd_pkg::learning_rate_change_t learning_rate_change_o,
  output logic                           clear_counters_o,   // pulse
  output logic                           event_pop_o,        // pulse
  output logic                           command_pending_o,  // until command_done_i
  output opd_pkg::command_t              command_o,
  // From the device
  input  logic                           command_done_i,     // the command ends at this edge
  input  opd_pkg::op_state_t             command_state_i,    // with command_done_i: state after it
  input  opd_pkg::status_t               status_i,
  input  opd_pkg::interrupts_t           interrupts_i,       // pulses: sets the bit at this edge
  output logic                           irq_o
);

  `OPD_ASSERT_PARAM(num_ops_fits_17_bits, NumOps >= 1 && NumOps <= 65536)
  `OPD_ASSERT_PARAM(an_engine_is_present, ForecastEngine + PublishedEngine >= 1)

  localparam logic [11:0] OpCommand = 12'h090;  // docs/registers.md

  // ---- Bus. The request is decided and registered in the setup clock.
  logic        setup, refused;
  logic        access_q, read_q, write_q;  // access clock; neither read nor write: refused
  logic [11:0] address_q;
  logic [31:0] data_q;
  logic        busy_q, busy_after;
  logic        op_command_written;

  assign setup      = apb_psel_i && !apb_penable_i && !access_q;
  assign busy_after = busy_q && !command_done_i;  // no write ends at the edge of a setup clock

  always_comb begin
    refused = 1'b0;
    if (setup) begin
      refused = !opd_reg_pkg::access_is_legal(apb_pwrite_i, apb_paddr_i, apb_pwdata_i);
      if (apb_pwrite_i) begin
        if (apb_pstrb_i != '1) refused = 1'b1;
        if (apb_paddr_i == OpCommand && (busy_after || 32'(apb_pwdata_i[15:0]) >= NumOps)) begin
          refused = 1'b1;
        end
      end
    end
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      access_q  <= 1'b0;
      read_q    <= 1'b0;
      write_q   <= 1'b0;
      address_q <= '0;
      data_q    <= '0;
    end else begin
      access_q <= setup;
      read_q   <= setup && !refused && !apb_pwrite_i;
      write_q  <= setup && !refused && apb_pwrite_i;
      if (setup) begin
        address_q <= apb_paddr_i;
        data_q    <= apb_pwdata_i;
      end
    end
  end

  assign apb_pready_o  = access_q;
  assign apb_pslverr_o = access_q && !read_q && !write_q;

  // ---- Command for one operator, and the announced learning-rate change
  logic               learning_rate_change_written, learning_rate_changed_q;
  opd_pkg::op_state_t op_state_q;

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      busy_q                  <= 1'b0;
      learning_rate_changed_q <= 1'b0;
      op_state_q              <= '0;
    end else begin
      if (op_command_written)  busy_q <= 1'b1;
      else if (command_done_i) busy_q <= 1'b0;
      if (learning_rate_change_written) learning_rate_changed_q <= 1'b1;
      if (command_done_i) op_state_q <= command_state_i;
    end
  end

  assign command_pending_o            = busy_q;
  assign learning_rate_change_o.valid = learning_rate_changed_q;

  // ---- Registers
  logic [5:0] irq_status, irq_enable;  // in the order of interrupts_t
  logic [1:0] command, mode;

  assign irq_o             = |(irq_status & irq_enable);
  assign command_o.command = opd_reg_pkg::command_e'(command);
  assign command_o.mode    = opd_reg_pkg::mode_e'(mode);

  opd_regblock u_regblock (
    .clk_i, .rst_ni, .read_i(read_q), .write_i(write_q), .address_i(address_q), .data_i(data_q),
    .data_o(apb_prdata_o), .cfg_o,
    // Identity
    .capability_ops_num_ops_i(17'(NumOps)), .capability_engines_forecast_i(1'(ForecastEngine)),
    .capability_engines_published_i(1'(PublishedEngine)),
    .capability_tap_width_i(10'(DatapathWidth)), .capability_tap_streams_i(9'(NumStreams)),
    .capability_queues_queue_depth_i(8'(QueueDepth)),
    .capability_queues_event_depth_i(8'(EventDepth)),
    .capability_queues_counter_width_i(6'(CounterWidth)),
    // Interrupt
    .irq_status_set_i(interrupts_i), .irq_status_o(irq_status), .irq_enable_o(irq_enable),
    // Status
    .queue_level_i(status_i.queue_level), .queue_high_water_i(status_i.queue_high_water),
    .unseen_count_i(status_i.unseen_count),
    .events_level_i(status_i.event_level), .events_high_water_i(status_i.event_high_water),
    .events_lost_count_i(status_i.events_lost), .upsets_count_i(status_i.upset_count),
    .event_step_step_i(status_i.event_head.step), .event_op_op_i(status_i.event_head.op),
    .event_op_old_mode_i(status_i.event_head.old_mode),
    .event_op_new_mode_i(status_i.event_head.new_mode),
    .event_op_cause_i(status_i.event_head.cause), .event_score_flags_i(status_i.event_head.flags),
    .event_score_risk_i(status_i.event_head.risk),
    .stable_ops_count_i(status_i.stable_ops), .safe_ops_count_i(status_i.safe_ops),
    .hint_loss_scale_shift_i(status_i.hints.loss_scale_shift),
    .hint_clip_shift_i(status_i.hints.clip_shift),
    .hint_learning_rate_factor_i(status_i.hints.learning_rate_factor),
    .last_clean_step_step_i(status_i.last_clean_step),
    .last_clean_valid_i(status_i.last_clean_valid),
    // Operator
    .op_status_busy_i(busy_q), .op_command_written_o(op_command_written),
    .op_command_op_o(command_o.op), .op_command_command_o(command), .op_setting_mode_o(mode),
    .op_setting_locked_o(command_o.locked), .op_setting_disabled_o(command_o.disabled),
    .op_control_mode_i(op_state_q.control.mode), .op_control_locked_i(op_state_q.control.locked),
    .op_control_disabled_i(op_state_q.control.disabled),
    .op_control_timer_i(op_state_q.control.timer),
    .op_control_last_step_i(op_state_q.control.last_step),
    .op_history_age_i(op_state_q.history.age),
    .op_history_nonfinite_run_i(op_state_q.history.nonfinite_run),
    .op_baseline_i(op_state_q.forecast.baseline), .op_anchor_i(op_state_q.published.anchor),
    .op_mean_i(op_state_q.published.mean), .op_variance_i(op_state_q.published.variance),
    .op_last_i(op_state_q.published.last), .op_slope_i(op_state_q.published.slope),
    // Commands
    .command_clear_counters_o(clear_counters_o), .event_pop_pop_o(event_pop_o),
    .learning_rate_change_step_o(learning_rate_change_o.step),
    .learning_rate_change_written_o(learning_rate_change_written)
  );

  `OPD_ASSERT(PassedOnInTheAccessClockOnly_A, read_q || write_q, access_q && read_q != write_q)
  `OPD_ASSERT(CommandEndsOnlyWhenPending_A, command_done_i, busy_q)
  `OPD_ASSERT(CommandNamesAnOperator_A, busy_q, 32'(command_o.op) < NumOps)

endmodule : opd_registers
