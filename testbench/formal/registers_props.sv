// Properties of opd_registers on its ports: APB4 answers, what is refused, and that no write at all brings the configuration
// out of the ranges that the arithmetic relies on. The bus is free: it need not even keep to the protocol.
module registers_props #(
  parameter int unsigned NumOps = 3
) (
  input logic                 clk_i,
  input logic                 rst_ni,
  input logic                 apb_psel_i,
  input logic                 apb_penable_i,
  input logic                 apb_pwrite_i,
  input logic [11:0]          apb_paddr_i,
  input logic [31:0]          apb_pwdata_i,
  input logic [3:0]           apb_pstrb_i,
  input logic                 command_done_i,  // only while a command is pending
  input opd_pkg::op_state_t   command_state_i,
  input opd_pkg::status_t     status_i,
  input opd_pkg::interrupts_t interrupts_i
);

  localparam logic [31:0] ZMaximum = 32'h4700_0000;  // 2^15

  opd_reg_pkg::cfg_t              cfg;
  opd_pkg::learning_rate_change_t change;
  opd_pkg::command_t              command;
  logic                           ready, error, clear, pop, pending, irq;
  logic [31:0]                    read_data;

  opd_registers #(
    .NumOps(NumOps), .DatapathWidth(32), .NumStreams(1), .QueueDepth(2), .CounterWidth(2), .EventDepth(1),
    .ForecastEngine(1), .PublishedEngine(1)
  ) dut (
    .clk_i, .rst_ni, .apb_psel_i, .apb_penable_i, .apb_pwrite_i, .apb_paddr_i, .apb_pwdata_i, .apb_pstrb_i,
    .apb_pready_o(ready), .apb_prdata_o(read_data), .apb_pslverr_o(error),
    .cfg_o(cfg), .learning_rate_change_o(change), .clear_counters_o(clear), .event_pop_o(pop),
    .command_pending_o(pending), .command_o(command), .command_done_i, .command_state_i, .status_i, .interrupts_i, .irq_o(irq)
  );

  // The access that is answered in this clock, and everything that a write may change, one clock ago.
  logic              setup_q, write_q, strobed_q, before_q = 1'b0;
  logic [11:0]       address_q;
  logic [31:0]       data_q;
  opd_reg_pkg::cfg_t cfg_q;
  logic              pending_q, done_q, accepted_q;  // accepted: a write took effect at the last edge
  logic [11:0]       accepted_address_q;
  logic [31:0]       accepted_data_q;
  opd_pkg::command_t              command_q;
  opd_pkg::learning_rate_change_t change_q;
  logic              first_cycle = 1'b1;

  always_ff @(posedge clk_i) begin
    first_cycle        <= 1'b0;
    before_q           <= rst_ni;  // no reset at the last edge
    setup_q            <= apb_psel_i && !apb_penable_i && !ready;
    write_q            <= apb_pwrite_i;
    strobed_q          <= apb_pstrb_i == '1;
    address_q          <= apb_paddr_i;
    data_q             <= apb_pwdata_i;
    cfg_q              <= cfg;
    pending_q          <= pending;
    done_q             <= command_done_i;
    accepted_q         <= ready && !error && write_q;
    accepted_address_q <= address_q;
    accepted_data_q    <= data_q;
    command_q          <= command;
    change_q           <= change;
  end

  always_comb begin
    assume (!first_cycle || !rst_ni);
    assume (!command_done_i || pending);
    if (!first_cycle && rst_ni) begin
      // docs/registers.md, column "range".
      ConfigurationInRange: assert (
          cfg.baseline_shift >= 4'd1 && cfg.baseline_shift <= 4'd8 && cfg.risk_stable != '0 && cfg.risk_safe != '0 &&
          cfg.quiet_steps != '0 && cfg.safe_steps != '0 && cfg.published_alpha >= 32'h0080_0000 &&
          cfg.published_alpha <= 32'h3F80_0000 && cfg.z_threshold <= ZMaximum && cfg.z_threshold_desensitised <= ZMaximum &&
          cfg.d2_threshold < 32'h7F80_0000 && cfg.d2_threshold_desensitised < 32'h7F80_0000 &&
          cfg.variance_floor < 32'h7F80_0000 && cfg.hint_learning_rate_factor <= 17'd65536);
      CommandIsLegal: assert (command.mode <= opd_reg_pkg::ModeSafe && (!pending || command.op < 16'(NumOps)));
      if (!ready) begin
        IdleAnswersNothing: assert (!error && read_data == '0);
      end
      if (error) begin
        RefusedReadsZero: assert (read_data == '0);
      end
      if (ready && write_q && !error) begin
        WritesWholeWords:   assert (strobed_q && address_q[1:0] == 2'b00 && read_data == '0);
        NothingBelowIsWritten: assert (address_q >= 12'h024);
      end
      if (before_q) begin
        ReadyAfterSetup: assert (ready == setup_q);
        if (!accepted_q) begin
          OnlyWritesChange: assert (cfg == cfg_q && change == change_q && command == command_q && !clear && !pop);
        end
        if (accepted_q && accepted_address_q < 12'h100) begin
          CommandsLeaveConfiguration: assert (cfg == cfg_q);
        end
        PendingByCommandAlone: assert (pending == ((pending_q && !done_q) || (accepted_q && accepted_address_q == 12'h090)));
        if (pending_q && !done_q) begin
          CommandIsHeld: assert (command.op == command_q.op && command.command == command_q.command);
        end
        ClearAndPopOnlyWhenAsked: assert (
            clear == (accepted_q && accepted_address_q == 12'h024 && accepted_data_q[0]) &&
            pop == (accepted_q && accepted_address_q == 12'h06C && accepted_data_q[0]));
        // Inductive strengthening: what passed the bus side is this access.
        AccessIsOurs: assert (!ready || (dut.address_q == address_q && dut.data_q == data_q && dut.write_q == (write_q && !error) &&
            dut.read_q == (!write_q && !error)));
      end
      // Inductive strengthening: a write that got through is legal.
      OneOrNeither: assert (ready || !(dut.write_q || dut.read_q));
      if (dut.write_q) begin
        WriteIsLegal: assert (opd_reg_pkg::access_is_legal(1'b1, dut.address_q, dut.data_q) &&
            (dut.address_q != 12'h090 || (!pending && dut.data_q[15:0] < 16'(NumOps))));
        if (before_q) begin
          WriteIsStrobed: assert (strobed_q);
        end
      end
    end
  end

endmodule : registers_props
