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

  // What both engines know of one operator's past.
  typedef struct packed {
    logic [7:0] age;            // usable samples since the baselines were seeded, saturating
    logic [7:0] nonfinite_run;  // non-finite samples in a row, saturating
  } history_t;

  // Forecast engine, one operator.
  typedef struct packed {
    logic signed [16:0] baseline;  // moving average of the log2 code, unit 1/128 bit
  } forecast_state_t;

  // Published engine, one operator; binary32 in units of 2^shift (docs/numerics.md).
  typedef struct packed {
    logic signed [9:0] anchor;    // biased exponent of the seed, loss scale taken out
    logic [31:0]       mean;
    logic [31:0]       variance;
    logic [31:0]       last;      // previous usable sample
    logic [31:0]       slope;     // previous first difference
  } published_state_t;

  // Downshift controller, one operator.
  typedef struct packed {
    opd_reg_pkg::mode_e mode;
    logic               locked;     // the mode stays as software set it
    logic               disabled;   // samples are not judged
    logic [7:0]         timer;      // steps spent quiet (STABLE) or in the mode (SAFE), saturating
    logic [7:0]         last_step;  // low byte of the step of the operator's last sample
  } control_state_t;

  // State of one operator; all zero after reset.
  typedef struct packed {
    history_t         history;
    forecast_state_t  forecast;
    published_state_t published;
    control_state_t   control;
  } op_state_t;

  // What software asks of one operator's state.
  typedef struct packed {
    logic [15:0]           op;        // 0..NumOps-1
    opd_reg_pkg::command_e command;
    opd_reg_pkg::mode_e    mode;      // for SET
    logic                  locked;    // for SET
    logic                  disabled;  // for SET
  } command_t;

  // What software learns of one sample.
  typedef struct packed {
    logic [31:0]         step;
    logic [15:0]         op;
    opd_reg_pkg::mode_e  old_mode;
    opd_reg_pkg::mode_e  new_mode;
    opd_reg_pkg::cause_e cause;
    logic [15:0]         flags;
    logic [7:0]          risk;
  } event_t;

  // What the training loop should do now.
  typedef struct packed {
    logic signed [7:0] loss_scale_shift;      // multiply the loss scale by 2^this
    logic signed [7:0] clip_shift;            // multiply the clip threshold by 2^this
    logic [16:0]       learning_rate_factor;  // multiply the learning rate by this / 65536
  } hints_t;

  // The learning-rate change that software announced.
  typedef struct packed {
    logic        valid;  // one was announced since reset
    logic [31:0] step;   // first training step with the new learning rate
  } learning_rate_change_t;

  // Status that software reads.
  typedef struct packed {
    logic [7:0]  queue_level;
    logic [7:0]  queue_high_water;
    logic [31:0] unseen_count;
    logic [7:0]  event_level;
    logic [7:0]  event_high_water;
    logic [31:0] events_lost;
    logic [31:0] upset_count;
    event_t      event_head;       // 0 while no event waits
    logic [16:0] stable_ops;
    logic [16:0] safe_ops;
    hints_t      hints;
    logic [31:0] last_clean_step;  // 0 while not valid
    logic        last_clean_valid;
  } status_t;

  // Interrupt causes, in the order of IRQ_STATUS.
  typedef struct packed {
    logic upset;
    logic escalate;
    logic hint;
    logic unseen;
    logic event_lost;
    logic event_queued;
  } interrupts_t;

  // Flags of one sample; bit i is opd_reg_pkg::flag_e i. OpRecord carries 16.
  typedef struct packed {
    logic upset;
    logic z_half;
    logic warmup;
    logic saturated;
    logic nonfinite;
    logic jump;
    logic critical;
    logic forecast;
    logic d2;
    logic z;
  } flags_t;

  // The bits of a magnitude in its format; those above do not exist there.
  function automatic logic [30:0] magnitude_bits(logic [2:0] format, logic [30:0] value);
    unique case (format)
      opd_reg_pkg::FormatFp16, opd_reg_pkg::FormatBf16: return 31'(value[14:0]);
      opd_reg_pkg::FormatE4m3, opd_reg_pkg::FormatE5m2: return 31'(value[6:0]);
      default:                                          return value;
    endcase
  endfunction

  // c * 2^-n of a finite binary32 magnitude: 0 below the normal range, infinity above it.
  function automatic logic [30:0] scaled(logic [30:0] c, logic signed [11:0] n);
    logic signed [11:0] exponent;
    exponent = 12'({4'd0, c[30:23]}) - n;
    if (c[30:23] == '0 || exponent < 12'sd1) return 31'd0;
    if (exponent > 12'sd254)                 return 31'h7F80_0000;
    return {exponent[7:0], c[22:0]};
  endfunction

  // What the device says about one completion.
  typedef struct packed {
    completion_t         completion;
    opd_reg_pkg::mode_e  mode;   // in force for the operator's next execution
    flags_t              flags;
    logic [7:0]          risk;
    opd_reg_pkg::cause_e cause;
  } record_t;

endpackage : opd_pkg
