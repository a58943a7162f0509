#include "python_policy.hpp"

#include <bit>
#include <map>
#include <tuple>
#include <utility>

#include "python.hpp"

namespace py = pybind11;

namespace opd::tb {
namespace {

class PythonPolicy final : public HostPolicy {
 public:
  explicit PythonPolicy(const std::string& where)
      : policy_(py::module_::import("opd.policy.replay").attr("ReplayPolicy")(where)),
        file_(policy_.attr("file").cast<std::string>()),
        name_(policy_.attr("name").cast<std::string>()),
        sha256_(policy_.attr("sha256").cast<std::string>()) {}

  std::vector<HostCommand> start(const OperatorStream& operators, const Config& config) override {
    return with_python([&] {
      config_ = config;
      py::list entries;
      for (std::size_t op = 0; op < operators.ops(); ++op) {
        const trace::Probe& probe = operators.trace().probes()[operators.probe_of(op)];
        entries.append(py::make_tuple(operators.name_of(op),
                                      trace::kProbeKindNames[static_cast<std::size_t>(probe.kind)],
                                      kFormatNames[static_cast<std::size_t>(probe.format)]));
      }
      py::dict fields;
      for (const ConfigField& field : kConfigFields) {
        const std::int32_t value = field.get(config);
        const py::str name{field.name.data(), field.name.size()};
        if (field.is_float) {
          fields[name] = std::bit_cast<float>(value);
        } else {
          fields[name] = value;
        }
      }
      return commands_(policy_.attr("start")(operators.trace().name(), entries, fields));
    });
  }

  std::vector<HostCommand> step(const StepSeen& seen) override {
    return with_python([&] {
      const py::bytes records(reinterpret_cast<const char*>(seen.records.data()),
                              seen.records.size() * sizeof(OpRecord));
      py::list events;
      for (const Event& e : seen.events) {
        events.append(py::make_tuple(e.step, e.op, static_cast<unsigned>(e.old_mode),
                                     static_cast<unsigned>(e.new_mode),
                                     static_cast<unsigned>(e.cause), e.flags, e.risk));
      }
      return commands_(
          policy_.attr("step")(seen.step, records, events,
                               py::make_tuple(seen.hints.loss_scale_shift, seen.hints.clip_shift,
                                              seen.hints.learning_rate_factor),
                               seen.last_clean_step));
    });
  }

  std::string file() const override { return file_; }
  std::string name() const override { return name_; }
  std::string sha256() const override { return sha256_; }

 private:
  /// Tuples of sw_reference/python/opd/policy/device.py, which has checked them.
  std::vector<HostCommand> commands_(const py::list& tuples) {
    std::vector<HostCommand> commands;
    for (const py::handle& item : tuples) {
      const auto tuple = item.cast<py::tuple>();
      const auto name = tuple[0].cast<std::string>();
      if (name == "set") {
        commands.emplace_back(SetOperator{tuple[1].cast<std::uint16_t>(),
                                          static_cast<Mode>(tuple[2].cast<unsigned>()),
                                          tuple[3].cast<bool>(), tuple[4].cast<bool>()});
      } else if (name == "reseed") {
        commands.emplace_back(ReseedOperator{tuple[1].cast<std::uint16_t>()});
      } else if (name == "clear") {
        commands.emplace_back(ClearOperator{tuple[1].cast<std::uint16_t>()});
      } else if (name == "configure") {
        commands.emplace_back(
            Configure{configured_(tuple[1].cast<std::map<std::string, double>>())});
      } else if (name == "learning_rate") {
        commands.emplace_back(AnnounceLearningRate{tuple[1].cast<std::uint32_t>()});
      } else if (name == "hints") {
        commands.emplace_back(TellTraining{hints_(tuple[1])});
      } else {
        throw std::logic_error("a policy's command " + name + " is unknown");
      }
    }
    return commands;
  }

  const Config& configured_(const std::map<std::string, double>& written) {
    for (const ConfigField& field : kConfigFields) {
      const auto found = written.find(std::string(field.name));
      if (found == written.end()) continue;
      field.set(config_, field.is_float
                             ? std::bit_cast<std::int32_t>(static_cast<float>(found->second))
                             : static_cast<std::int32_t>(found->second));
    }
    return config_;
  }

  static std::optional<Hints> hints_(const py::object& told) {
    if (told.is_none()) return std::nullopt;
    const auto [loss_scale, clip, rate] = told.cast<std::tuple<int, int, std::uint32_t>>();
    return Hints{static_cast<std::int8_t>(loss_scale), static_cast<std::int8_t>(clip), rate};
  }

  py::object policy_;
  std::string file_, name_, sha256_;
  Config config_;  ///< in force
};

}  // namespace

std::unique_ptr<HostPolicy> python_policy(const std::string& where) {
  return with_python(
      [&]() -> std::unique_ptr<HostPolicy> { return std::make_unique<PythonPolicy>(where); });
}

}  // namespace opd::tb
