#include "router/front_end/trace_parent.h"

namespace tandem::router {
namespace {

bool IsHex(absl::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

bool IsZero(absl::string_view text) {
  return text.find_first_not_of('0') == absl::string_view::npos;
}

}  // namespace

std::string TraceIdOf(absl::string_view traceparent) {
  constexpr size_t kBytes = 55;  // 2-32-16-2
  if (traceparent.size() < kBytes || traceparent[2] != '-' || traceparent[35] != '-' ||
      traceparent[52] != '-') {
    return "";
  }
  const absl::string_view version = traceparent.substr(0, 2), trace = traceparent.substr(3, 32),
                          parent = traceparent.substr(36, 16), flags = traceparent.substr(53, 2);
  if (!IsHex(version) || !IsHex(trace) || !IsHex(parent) || !IsHex(flags)) return "";
  if (version == "ff" || IsZero(trace) || IsZero(parent)) return "";
  // Later versions may have more fields after another dash.
  const bool more = traceparent.size() > kBytes;
  if (more && (version == "00" || traceparent[kBytes] != '-')) return "";
  return std::string(trace);
}

}  // namespace tandem::router
