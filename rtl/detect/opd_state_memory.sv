// State of every operator: one single-ported memory, one word with parity per operator.
//
// The memory itself has no reset (it may be an SRAM macro); two `written` bits per operator have, and a
// word that was not written since reset reads as 0. A single flipped bit shows: in the word by its
// parity, in a `written` bit by its twin. The bits of an engine that is absent are not stored and
// read as 0.
//
//   latency    : read data after the edge that samples read_i, held until the next read
//   throughput : one read or one write per clock, never both
//   corrupt    : corrupt_o = 1; state_o is then not to be used
//   rule       : docs/architecture.md, "The device"; docs/controller.md, "Upsets"
`include "opd_assert.svh"

module opd_state_memory #(
  parameter  int unsigned NumOps          = 256,  // words, 1..65536
  parameter  int unsigned ForecastEngine  = 1,    // 1 = its state is stored
  parameter  int unsigned PublishedEngine = 1,    // 1 = its state is stored
  localparam int unsigned OpWidth         = NumOps > 1 ? $clog2(NumOps) : 1  // derived
) (
  input  logic               clk_i,
  input  logic               rst_ni,
  input  logic               read_i,
  input  logic               write_i,
  input  logic [OpWidth-1:0] op_i,      // 0..NumOps-1
  input  opd_pkg::op_state_t state_i,   // written
  output opd_pkg::op_state_t state_o,   // read
  output logic               corrupt_o  // of what was read
);

  localparam int unsigned Width = $bits(opd_pkg::history_t) + $bits(opd_pkg::control_state_t) +
                                  ForecastEngine * $bits(opd_pkg::forecast_state_t) +
                                  PublishedEngine * $bits(opd_pkg::published_state_t);

  // The parity bit makes the number of ones even.
  typedef struct packed {
    logic             parity;
    logic [Width-1:0] state;
  } word_t;

  word_t            word_q [NumOps];
  word_t            read_q;
  logic [1:0]       written_q [NumOps];
  logic [1:0]       read_written_q;
  logic [Width-1:0] stored, found;

  if (ForecastEngine != 0 && PublishedEngine != 0) begin : gen_both
    assign stored  = state_i;
    assign state_o = found;
  end else if (ForecastEngine != 0) begin : gen_forecast
    logic unused_state;
    assign stored       = {state_i.history, state_i.control, state_i.forecast};
    assign unused_state = ^state_i.published;
    always_comb begin
      state_o = '0;
      {state_o.history, state_o.control, state_o.forecast} = found;
    end
  end else begin : gen_published
    logic unused_state;
    assign stored       = {state_i.history, state_i.control, state_i.published};
    assign unused_state = ^state_i.forecast;
    always_comb begin
      state_o = '0;
      {state_o.history, state_o.control, state_o.published} = found;
    end
  end

  always_ff @(posedge clk_i) begin
    if (write_i)     word_q[op_i] <= '{parity: ^stored, state: stored};
    else if (read_i) read_q <= word_q[op_i];
  end

  always_ff @(posedge clk_i or negedge rst_ni) begin
    if (!rst_ni) begin
      written_q      <= '{default: 2'b00};
      read_written_q <= 2'b00;
    end else begin
      if (write_i) written_q[op_i] <= 2'b11;
      if (read_i)  read_written_q <= written_q[op_i];
    end
  end

  assign found     = read_written_q == 2'b11 ? read_q.state : '0;
  assign corrupt_o = read_written_q[0] != read_written_q[1] ||
                     (read_written_q == 2'b11 && ^read_q != 1'b0);

  `OPD_ASSERT(OnePort_A, read_i, !write_i)
  `OPD_ASSERT(OpIsLegal_A, read_i || write_i, 32'(op_i) < NumOps)

endmodule : opd_state_memory
