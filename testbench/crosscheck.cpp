#include "crosscheck.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace opd::tb {
namespace {

template <class T>
std::string show(const T& value) {
  return fmt::format("{}", value);
}
std::string hex(std::uint32_t value) { return fmt::format("0x{:08X}", value); }
std::string name_of(Mode mode) {
  const auto index = static_cast<std::size_t>(mode);
  return index < kModeNames.size() ? std::string(kModeNames[index]) : fmt::format("mode {}", index);
}
std::string name_of_cause(std::uint8_t cause) {
  return cause < kCauseNames.size() ? std::string(kCauseNames[cause])
                                    : fmt::format("cause {}", cause);
}

}  // namespace

void note(std::vector<MismatchKind>& kinds, Divergence divergence) {
  merge(kinds, {MismatchKind{.count = 1, .first = divergence, .last = std::move(divergence)}});
}

void merge(std::vector<MismatchKind>& kinds, const std::vector<MismatchKind>& others) {
  for (const MismatchKind& other : others) {
    const auto same = std::find_if(kinds.begin(), kinds.end(),
                                   [&](const MismatchKind& kind) { return kind.is_like(other); });
    if (same == kinds.end()) {
      kinds.push_back(other);
    } else {
      same->count += other.count;
      same->last = other.last;
    }
  }
}

std::vector<Divergence> compare_states(const std::string& left_name, const StoredState& left,
                                       const std::string& right_name, const StoredState& right,
                                       std::uint16_t op, const Completion& where) {
  std::vector<Divergence> differences;
  if (left == right) return differences;
  for (const StateField& field : kStateFields) {
    if (field.get(left) == field.get(right)) continue;
    // They follow from the rest of the word, and from its mode.
    if (field.name == "parity" && !differences.empty()) continue;
    if (field.name == "mode_register" && left.mode != right.mode) continue;
    Divergence& d =
        differences.emplace_back(Divergence{.left = left_name,
                                            .right = right_name,
                                            .field = fmt::format("{}{}", kStatePrefix, field.name),
                                            .left_value = field_text(field, left),
                                            .right_value = field_text(field, right),
                                            .record = where.record,
                                            .state_op = op});
    if (where.record_cycle == 0) continue;
    d.cycle = where.record_cycle;
    d.last_beat_cycle = where.last_beat_cycle;
  }
  return differences;
}

std::string flags_text(std::uint16_t flags) {
  if (flags == 0) return "none";
  std::string text;
  for (std::size_t bit = 0; bit < 16; ++bit) {
    if ((flags >> bit & 1u) == 0) continue;
    if (!text.empty()) text += '|';
    text += bit < kFlagNames.size() ? std::string(kFlagNames[bit]) : fmt::format("bit {}", bit);
  }
  return text;
}

std::optional<Divergence> compare_records(const std::string& left_name, const OpRecord& left,
                                          const TapCounts& left_counts,
                                          const std::string& right_name, const OpRecord& right,
                                          const TapCounts& right_counts) {
  if (left == right && left_counts == right_counts) return std::nullopt;
  Divergence d{.left = left_name, .right = right_name, .record = left};
  const auto differ = [&](const char* field, const auto& l, const auto& r, const auto& text) {
    if (l == r || !d.field.empty()) return;
    d.field = field;
    d.left_value = text(l);
    d.right_value = text(r);
  };
  const auto number = [](auto v) { return show(+v); };
  differ("seq", left.seq, right.seq, number);
  differ("step", left.step, right.step, number);
  differ("op", left.op, right.op, number);
  differ("format", left.format, right.format, number);
  differ("max_mag", left.max_mag, right.max_mag, hex);
  differ("nonfinite_count", left.nonfinite_count, right.nonfinite_count, number);
  differ("first_nonfinite", left.first_nonfinite, right.first_nonfinite, number);
  differ("saturated_count", left.saturated_count, right.saturated_count, number);
  differ("element_count", left_counts.element_count, right_counts.element_count, number);
  differ("subnormal_count", left_counts.subnormal_count, right_counts.subnormal_count, number);
  differ("zero_count", left_counts.zero_count, right_counts.zero_count, number);
  differ("flags", left.flags, right.flags, flags_text);
  differ("risk", left.risk, right.risk, number);
  differ("cause", left.cause, right.cause, name_of_cause);
  differ("mode", static_cast<Mode>(left.mode), static_cast<Mode>(right.mode), name_of);
  return d;
}

std::optional<Divergence> compare_cycles(const std::string& left_name, const CycleOutput& left,
                                         const std::string& right_name, const CycleOutput& right,
                                         std::uint64_t cycle) {
  std::optional<Divergence> found;
  const auto differ = [&](const char* pin, const auto& l, const auto& r, const auto& text) {
    if (l == r || found) return;
    found = Divergence{.left = left_name,
                       .right = right_name,
                       .field = pin,
                       .left_value = text(l),
                       .right_value = text(r)};
    if (left.record_valid) found->record = left.record;
    if (right.record_valid && !left.record_valid) found->record = right.record;
  };
  const auto number = [](auto v) { return show(+v); };
  differ("record_valid", left.record_valid, right.record_valid, number);
  if (!found && left.record_valid) {
    found = compare_records(left_name, left.record, left.counts, right_name, right.record,
                            right.counts);
  }
  differ("mode_o", left.mode, right.mode, name_of);
  differ("stat_ready", left.stat_ready, right.stat_ready, number);
  differ("queue_level", left.queue_level, right.queue_level, number);
  differ("queue_high_water", left.queue_high_water, right.queue_high_water, number);
  differ("unseen_count", left.unseen_count, right.unseen_count, number);
  differ("irq", left.irq, right.irq, number);
  differ("apb_ready", left.apb.ready, right.apb.ready, number);
  differ("apb_error", left.apb.error, right.apb.error, number);
  differ("apb_data", left.apb.data, right.apb.data, hex);
  if (found) found->cycle = cycle;
  return found;
}

std::string event_text(const Event& event) {
  return fmt::format("step {}, op {}: {} to {}, {}, flags {}, risk {}", event.step, event.op,
                     name_of(event.old_mode), name_of(event.new_mode),
                     name_of_cause(static_cast<std::uint8_t>(event.cause)), flags_text(event.flags),
                     event.risk);
}

std::string hints_text(const Hints& hints) {
  if (hints == Hints{}) return "none";
  return fmt::format("loss scale 2^{}, clip 2^{}, learning rate {}/65536", hints.loss_scale_shift,
                     hints.clip_shift, hints.learning_rate_factor);
}

EventComparison compare_events(const std::string& left_name, std::span<const Event> left,
                               std::uint32_t lost, const std::string& right_name,
                               std::span<const Event> right) {
  EventComparison result;
  const auto note = [&](const std::string& field, std::string l, std::string r) {
    ++result.mismatches;
    Divergence d{.left = left_name,
                 .right = right_name,
                 .field = field,
                 .left_value = std::move(l),
                 .right_value = std::move(r)};
    if (!result.first) result.first = d;
    tb::note(result.kinds, std::move(d));
  };
  auto next = left.begin();
  const Event* skipped = nullptr;  // the first that may be a lost one
  std::uint64_t missing = 0;
  for (const Event& event : right) {
    if (next != left.end() && *next == event) {
      ++next;
      ++result.compared;
    } else {
      if (skipped == nullptr) skipped = &event;
      ++missing;
    }
  }
  for (; next != left.end(); ++next) {
    note("event", event_text(*next), skipped == nullptr ? "none" : event_text(*skipped));
  }
  if (missing > lost && result.mismatches == 0)
    note("event", lost == 0 ? "none" : fmt::format("{} lost", lost), event_text(*skipped));
  if (missing != lost && result.mismatches == 0) note("events lost", show(lost), show(missing));
  return result;
}

RecordComparison compare_streams(const std::string& left_name, std::span<const Completion> left,
                                 const std::string& right_name, std::span<const Completion> right) {
  RecordComparison result{.left = left_name, .right = right_name};
  const auto note = [&](Divergence d, const Completion& where) {
    ++result.mismatches;
    if (where.record_cycle != 0) {
      d.cycle = where.record_cycle;
      d.last_beat_cycle = where.last_beat_cycle;
    }
    if (!result.first) result.first = d;
    tb::note(result.kinds, std::move(d));
  };
  const auto lacking = [&](const std::string& path, const Completion& record) {
    note(Divergence{.left = left_name,
                    .right = right_name,
                    .field = "record",
                    .left_value = path == left_name ? "missing" : "present",
                    .right_value = path == right_name ? "missing" : "present",
                    .record = record.record},
         record);
  };
  auto l = left.begin();
  auto r = right.begin();
  while (l != left.end() && r != right.end()) {
    if (l->record.seq < r->record.seq) {
      lacking(right_name, *l++);
    } else if (r->record.seq < l->record.seq) {
      lacking(left_name, *r++);
    } else {
      ++result.compared;
      auto d = compare_records(left_name, l->record, l->counts, right_name, r->record, r->counts);
      if (d) note(std::move(*d), l->record_cycle != 0 ? *l : *r);
      ++l;
      ++r;
    }
  }
  for (; l != left.end(); ++l) lacking(right_name, *l);
  for (; r != right.end(); ++r) lacking(left_name, *r);
  return result;
}

}  // namespace opd::tb
