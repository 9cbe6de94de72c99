#include "cli/flags/sampling_flags.h"

#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_replace.h"
#include "common/rpc/wire_fields.h"

namespace tandem::cli {
namespace {

using request::Description;
using request::Range;
using request::SamplingParams;
using request::StopParams;

// The value that a parameter's flag writes: one overload for each type that can have a flag.
// `Flags` is SamplingFlags, const or not.
template <typename Flags>
auto& ValueOf(Flags& flags, double SamplingParams::*member) {
  return flags.sampling.*member;
}
template <typename Flags>
auto& ValueOf(Flags& flags, int32_t SamplingParams::*member) {
  return flags.sampling.*member;
}
// Only the seed has this type.
template <typename Flags>
auto& ValueOf(Flags& flags, uint64_t SamplingParams::* /*member*/) {
  return flags.seed;
}
template <typename Flags>
auto& ValueOf(Flags& flags, int32_t StopParams::*member) {
  return flags.stop.*member;
}
template <typename Flags>
auto& ValueOf(Flags& flags, bool StopParams::*member) {
  return flags.stop.*member;
}
template <typename Flags>
auto& ValueOf(Flags& flags, std::vector<std::string> StopParams::*member) {
  return flags.stop.*member;
}

template <typename T>
void AddFlag(config::Schema& schema, const Description& about, T& value) {
  config::FieldOptions<T> options{.unit = std::string(about.flag.unit), .group = "Sampling"};
  if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    if (about.range.low != -Range::kUnbounded) options.min = static_cast<T>(about.range.low);
    options.min_excluded = about.range.low_excluded;
    if (about.range.high != Range::kUnbounded) options.max = static_cast<T>(about.range.high);
    if (about.flag.unset.has_value()) options.min = static_cast<T>(*about.flag.unset);
    if (about.flag.initial.has_value()) value = static_cast<T>(*about.flag.initial);
  }
  schema.Add(absl::StrReplaceAll(about.name, {{"_", "-"}}), &value, about.flag.help, options);
}

template <typename Field, typename T>
void WriteField(const Field& field, const Description& about, const T& value,
                typename Field::message_type& message) {
  if constexpr (std::is_arithmetic_v<T>) {
    if (about.flag.unset.has_value() && value == static_cast<T>(*about.flag.unset)) return;
    (message.*field.set)(value);
  } else {
    (message.*field.mutate)()->Add(value.begin(), value.end());
  }
}

}  // namespace

void RegisterSamplingFlags(config::Schema& schema, SamplingFlags& flags) {
  request::ForEachParameter([&](const auto& row) {
    if constexpr (requires { ValueOf(flags, row.member); }) {
      if (!row.about.flag.help.empty()) AddFlag(schema, row.about, ValueOf(flags, row.member));
    }
  });
}

void ApplySamplingFlags(const SamplingFlags& flags, v1::GenerateRequest& request) {
  rpc::ForEachWireField([&](const Description& about, const auto& field) {
    using Field = std::decay_t<decltype(field)>;
    if constexpr (requires { ValueOf(flags, field.member); }) {
      if (about.flag.help.empty()) return;
      WriteField(field, about, ValueOf(flags, field.member), rpc::PartOf<Field>(request));
    }
  });
}

}  // namespace tandem::cli
