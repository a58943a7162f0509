#pragma once
// Policies written in Python (sw_reference/python/opd/policy).
#include <memory>
#include <string>

#include "policy.hpp"

namespace opd::tb {

/// The policy of FILE or FILE:CLASS. Throws std::runtime_error: "FILE:LINE: what is wrong".
[[nodiscard]] std::unique_ptr<HostPolicy> python_policy(const std::string& where);

}  // namespace opd::tb
