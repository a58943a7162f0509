#pragma once
// Outputs that cost nothing while they stay as they are, and printing and tracing of the structures that
// sc_signal carries. SystemC finds the latter by argument-dependent lookup, so they live in the
// namespace of the types.
#include <iomanip>
#include <optional>
#include <ostream>
#include <string>
#include <systemc>

#include "opd/types/device.hpp"

namespace opd::sc {

/// An output that its module writes at every edge. The signal hears of changes alone; the module is
/// its only writer.
template <class T>
class RegisteredOut : public sc_core::sc_out<T> {
 public:
  using sc_core::sc_out<T>::sc_out;
  void write(const T& value) {
    if (written_ == value) return;
    written_ = value;
    sc_core::sc_out<T>::write(value);
  }

 private:
  std::optional<T> written_;
};

}  // namespace opd::sc

namespace opd {

inline std::ostream& operator<<(std::ostream& out, Mode mode) {
  const auto code = static_cast<std::size_t>(mode);
  return code < kModeNames.size() ? out << kModeNames[code] : out << "Mode(" << code << ")";
}

inline std::ostream& operator<<(std::ostream& out, const OpDescriptor& descriptor) {
  return out << "op=" << descriptor.op << " format=" << static_cast<unsigned>(descriptor.format)
             << " step=" << descriptor.step
             << " scale_log2=" << static_cast<int>(descriptor.scale_log2);
}

inline std::ostream& operator<<(std::ostream& out, const TapSummary& summary) {
  return out << "max_mag=" << summary.max_mag << " element_count=" << summary.element_count
             << " nonfinite_count=" << summary.nonfinite_count
             << " first_nonfinite=" << summary.first_nonfinite
             << " saturated_count=" << summary.saturated_count
             << " subnormal_count=" << summary.subnormal_count
             << " zero_count=" << summary.zero_count;
}

inline std::ostream& operator<<(std::ostream& out, const TapCounts& counts) {
  return out << "element_count=" << counts.element_count
             << " subnormal_count=" << counts.subnormal_count
             << " zero_count=" << counts.zero_count;
}

inline std::ostream& operator<<(std::ostream& out, const Statistic& statistic) {
  return out << statistic.descriptor << ' ' << statistic.summary;
}

inline std::ostream& operator<<(std::ostream& out, const Beat& beat) {
  const std::ios_base::fmtflags flags = out.flags();
  const char fill = out.fill('0');
  out << beat.descriptor << " stream=" << static_cast<unsigned>(beat.stream)
      << " last=" << beat.last << " lane_enable=0x" << std::hex << beat.lane_enable << " data=0x";
  for (auto byte = beat.data.rbegin(); byte != beat.data.rend(); ++byte) {
    out << std::setw(2) << static_cast<unsigned>(*byte);
  }
  out.flags(flags);
  out.fill(fill);
  return out;
}

inline std::ostream& operator<<(std::ostream& out, const OpRecord& record) {
  return out << "seq=" << record.seq << " step=" << record.step << " op=" << record.op
             << " format=" << static_cast<unsigned>(record.format)
             << " mode=" << static_cast<unsigned>(record.mode) << " max_mag=" << record.max_mag
             << " nonfinite_count=" << record.nonfinite_count
             << " first_nonfinite=" << record.first_nonfinite
             << " saturated_count=" << record.saturated_count << " flags=" << record.flags
             << " risk=" << static_cast<unsigned>(record.risk)
             << " cause=" << static_cast<unsigned>(record.cause);
}

inline std::ostream& operator<<(std::ostream& out, const ApbRequest& request) {
  return out << "select=" << request.select << " enable=" << request.enable
             << " write=" << request.write << " address=" << request.address
             << " data=" << request.data << " strobe=" << static_cast<unsigned>(request.strobe);
}

inline std::ostream& operator<<(std::ostream& out, const ApbResponse& response) {
  return out << "ready=" << response.ready << " error=" << response.error
             << " data=" << response.data;
}

/// Traces one-byte enumerations by their code.
template <typename Enum>
void trace_code(sc_core::sc_trace_file* file, const Enum& code, const std::string& name) {
  static_assert(sizeof(Enum) == 1);
  sc_core::sc_trace(file, reinterpret_cast<const unsigned char&>(code), name);
}

inline void sc_trace(sc_core::sc_trace_file* file, const Mode& mode, const std::string& name) {
  trace_code(file, mode, name);
}

inline void sc_trace(sc_core::sc_trace_file* file, const OpDescriptor& descriptor,
                     const std::string& name) {
  sc_core::sc_trace(file, descriptor.op, name + ".op");
  trace_code(file, descriptor.format, name + ".format");
  sc_core::sc_trace(file, descriptor.step, name + ".step");
  trace_code(file, descriptor.scale_log2, name + ".scale_log2");
}

inline void sc_trace(sc_core::sc_trace_file* file, const TapSummary& summary,
                     const std::string& name) {
  sc_core::sc_trace(file, summary.max_mag, name + ".max_mag");
  sc_core::sc_trace(file, summary.element_count, name + ".element_count");
  sc_core::sc_trace(file, summary.nonfinite_count, name + ".nonfinite_count");
  sc_core::sc_trace(file, summary.first_nonfinite, name + ".first_nonfinite");
  sc_core::sc_trace(file, summary.saturated_count, name + ".saturated_count");
  sc_core::sc_trace(file, summary.subnormal_count, name + ".subnormal_count");
  sc_core::sc_trace(file, summary.zero_count, name + ".zero_count");
}

inline void sc_trace(sc_core::sc_trace_file* file, const TapCounts& counts,
                     const std::string& name) {
  sc_core::sc_trace(file, counts.element_count, name + ".element_count");
  sc_core::sc_trace(file, counts.subnormal_count, name + ".subnormal_count");
  sc_core::sc_trace(file, counts.zero_count, name + ".zero_count");
}

inline void sc_trace(sc_core::sc_trace_file* file, const Statistic& statistic,
                     const std::string& name) {
  sc_trace(file, statistic.descriptor, name);
  sc_trace(file, statistic.summary, name);
}

inline void sc_trace(sc_core::sc_trace_file* file, const Beat& beat, const std::string& name) {
  sc_trace(file, beat.descriptor, name);
  sc_core::sc_trace(file, beat.stream, name + ".stream");
  sc_core::sc_trace(file, beat.last, name + ".last");
  sc_core::sc_trace(file, beat.lane_enable, name + ".lane_enable");
  for (unsigned byte = 0; byte < kMaxBeatBytes; ++byte) {
    sc_core::sc_trace(file, beat.data[byte], name + ".data" + std::to_string(byte));
  }
}

inline void sc_trace(sc_core::sc_trace_file* file, const OpRecord& record,
                     const std::string& name) {
  sc_core::sc_trace(file, record.seq, name + ".seq");
  sc_core::sc_trace(file, record.step, name + ".step");
  sc_core::sc_trace(file, record.op, name + ".op");
  sc_core::sc_trace(file, record.format, name + ".format");
  sc_core::sc_trace(file, record.mode, name + ".mode");
  sc_core::sc_trace(file, record.max_mag, name + ".max_mag");
  sc_core::sc_trace(file, record.nonfinite_count, name + ".nonfinite_count");
  sc_core::sc_trace(file, record.first_nonfinite, name + ".first_nonfinite");
  sc_core::sc_trace(file, record.saturated_count, name + ".saturated_count");
  sc_core::sc_trace(file, record.flags, name + ".flags");
  sc_core::sc_trace(file, record.risk, name + ".risk");
  sc_core::sc_trace(file, record.cause, name + ".cause");
}

inline void sc_trace(sc_core::sc_trace_file* file, const ApbRequest& request,
                     const std::string& name) {
  sc_core::sc_trace(file, request.select, name + ".select");
  sc_core::sc_trace(file, request.enable, name + ".enable");
  sc_core::sc_trace(file, request.write, name + ".write");
  sc_core::sc_trace(file, request.address, name + ".address");
  sc_core::sc_trace(file, request.data, name + ".data");
  sc_core::sc_trace(file, request.strobe, name + ".strobe");
}

inline void sc_trace(sc_core::sc_trace_file* file, const ApbResponse& response,
                     const std::string& name) {
  sc_core::sc_trace(file, response.ready, name + ".ready");
  sc_core::sc_trace(file, response.error, name + ".error");
  sc_core::sc_trace(file, response.data, name + ".data");
}

}  // namespace opd
