#pragma once
// The part of an operation that a TLM-2.0 generic payload has no attribute for.
#include <optional>
#include <tlm>

#include "opd/types/record.hpp"

namespace opd::sc {

/// Ignorable extension: the elements travel in the payload's data array, as in any memory write.
class OperationExtension : public tlm::tlm_extension<OperationExtension> {
 public:
  OpDescriptor descriptor;
  std::optional<TapSummary> statistic;  ///< set: the operation has no elements, only this

  tlm::tlm_extension_base* clone() const override { return new OperationExtension(*this); }
  void copy_from(const tlm::tlm_extension_base& other) override {
    *this = static_cast<const OperationExtension&>(other);
  }
};

}  // namespace opd::sc
