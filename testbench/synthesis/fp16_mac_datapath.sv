// The yardstick of the area figures: a vector datapath of NumLanes times a * b + c, the least that an accelerator which
// the detection unit stands beside has. With the default 32 lanes one operand is as wide as a beat of opd_top, 512 bits.
//
//   latency    : 2 clocks
//   throughput : 1 vector per clock
module fp16_mac_datapath #(
  parameter  int unsigned NumLanes = 32,
  parameter  int unsigned AccExp   = 5,   // of addend and result: 5, 10 = FP16; 8, 23 = FP32
  parameter  int unsigned AccMan   = 10,
  localparam int unsigned AccWidth = 1 + AccExp + AccMan  // derived
) (
  input  logic                         clk_i,
  input  logic [NumLanes*16-1:0]       a_i,      // lane k at [16*k +: 16], FP16
  input  logic [NumLanes*16-1:0]       b_i,
  input  logic [NumLanes*AccWidth-1:0] c_i,      // lane k at [AccWidth*k +: AccWidth]
  output logic [NumLanes*AccWidth-1:0] result_o
);

  for (genvar lane = 0; lane < NumLanes; lane++) begin : gen_lane
    fp16_multiply_add #(.AccExp(AccExp), .AccMan(AccMan)) u_multiply_add (
      .clk_i,
      .a_i     (a_i[16*lane +: 16]),
      .b_i     (b_i[16*lane +: 16]),
      .c_i     (c_i[AccWidth*lane +: AccWidth]),
      .result_o(result_o[AccWidth*lane +: AccWidth])
    );
  end

endmodule : fp16_mac_datapath
