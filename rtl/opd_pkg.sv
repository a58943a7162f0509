// Types and constants shared by the modules of the device. Enumerations and cfg_t live in
// opd_reg_pkg (generated). Arithmetic: docs/numerics.md.
package opd_pkg;

  localparam int unsigned NumFormats = 5;   // codes at or above are illegal
  localparam int unsigned CodeWidth  = 14;  // bits of the signed log2 code x, unit 1/32 bit

  // What the operator is; constant from its first beat to its last.
  typedef struct packed {
    logic [15:0]       op;          // operator id; NumOps and above are illegal
    logic [2:0]        format;      // opd_reg_pkg::format_e; NumFormats and above are illegal
    logic [31:0]       step;        // training step
    logic signed [7:0] scale_log2;  // log2 of the loss scale in the operand, else 0
  } descriptor_t;

  // The tap's statistic of one operator output. Counters saturate at 2^CounterWidth - 1.
  typedef struct packed {
    logic [30:0] max_mag;          // bits of the largest finite magnitude; 0 = none
    logic [31:0] element_count;    // enabled elements
    logic [31:0] nonfinite_count;  // Inf and NaN
    logic [31:0] first_nonfinite;  // element index; NoElement = none
    logic [31:0] saturated_count;  // magnitude equal to the largest finite one
    logic [31:0] subnormal_count;  // exponent field 0, significand not 0
    logic [31:0] zero_count;       // both zeros
  } summary_t;

  localparam logic [31:0] NoElement = '1;  // first_nonfinite when every element is finite

  // One completion on its way to the detection unit.
  typedef struct packed {
    logic [31:0] seq;  // completion number
    descriptor_t descriptor;
    summary_t    summary;
  } completion_t;

  // Forecast engine, one operator.
  typedef struct packed {
    logic signed [16:0] baseline;       // moving average of the log2 code, unit 1/128 bit
    logic [7:0]         age;            // samples in the baseline, saturating
    logic [7:0]         nonfinite_run;  // non-finite samples in a row, saturating
  } forecast_state_t;

  // Downshift controller, one operator; its mode is in the mode registers.
  typedef struct packed {
    logic [7:0] timer;      // steps spent quiet (STABLE) or in the mode (SAFE), saturating
    logic [7:0] last_step;  // low byte of the step of the operator's last sample
  } control_state_t;

  // One word of the state memory.
  typedef struct packed {
    forecast_state_t forecast;
    control_state_t  control;
  } op_state_t;

  // Flags of one sample; bit i is opd_reg_pkg::flag_e i. OpRecord carries 16.
  typedef struct packed {
    logic warmup;
    logic saturated;
    logic nonfinite;
    logic jump;
    logic critical;
    logic forecast;
    logic d2;  // published engine, always 0
    logic z;   // published engine, always 0
  } flags_t;

  // What the device says about one completion.
  typedef struct packed {
    completion_t         completion;
    opd_reg_pkg::mode_e  mode;   // in force for the operator's next execution
    flags_t              flags;
    logic [7:0]          risk;
    opd_reg_pkg::cause_e cause;
  } record_t;

endpackage : opd_pkg
