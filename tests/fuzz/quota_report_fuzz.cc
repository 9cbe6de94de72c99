// Goal: whatever other members of the fleet report of tenants' quotas, a router gives out no more
// than its own quota, loses no count of its sequences, and computes with no figure that cannot be.
// The input is a list of pieces, each a byte that says what happens, a byte of length, and so many
// bytes: a report as it came over the wire, or the router's own next one, or requests.
#include <google/protobuf/stubs/logging.h>

#include <cmath>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "router/front_end/quota_exchange.h"

namespace tandem::router {
namespace {

constexpr int64_t kPerMinute = 100, kSequences = 10;
constexpr uint64_t kOwnIncarnation = 1;

void CheckUse(const Tenant& tenant, absl::Time now) {
  const TenantUse use = tenant.Use(now);
  TANDEM_CHECK(use.requests_left <= kPerMinute && use.tokens_left <= kPerMinute, use.requests_left);
  for (const double figure : {use.requests, use.tokens, use.demand, use.requests_left,
                              use.tokens_left, use.requests_part, use.tokens_part})
    TANDEM_CHECK(std::isfinite(figure), figure);
  TANDEM_CHECK(use.sequences >= 0 && use.sequences <= kSequences, use.sequences);
}

void Run(absl::string_view input) {
  google::protobuf::SetLogHandler(nullptr);  // it would log each name that is not UTF-8
  QuotaExchange exchange(kOwnIncarnation);
  const QuotaExchange::Tenants tenants = {std::make_shared<Tenant>("a"),
                                          std::make_shared<Tenant>("b")};
  for (const auto& tenant : tenants)
    tenant->SetLimits({.requests_per_minute = kPerMinute,
                       .tokens_per_minute = kPerMinute,
                       .sequences_max = kSequences});
  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  const absl::Time begin = now;
  int64_t taken[2] = {}, running[2] = {};
  for (int pieces = 0; input.size() >= 2 && pieces < 256; ++pieces) {
    const auto what = static_cast<uint8_t>(input[0]);
    const absl::string_view bytes = input.substr(2, static_cast<uint8_t>(input[1]));
    input.remove_prefix(2 + bytes.size());
    const int of = what >> 3 & 1;
    Tenant& tenant = *tenants[of];
    switch (what & 7) {
      case 0:
      case 1:
      case 2: {
        v1::RouterReport report;
        if (report.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
          exchange.OnReport(report, tenants, now);
        break;
      }
      case 3: {
        const v1::RouterReport own = exchange.Report(tenants, now);
        TANDEM_CHECK(own.router_incarnation() == kOwnIncarnation && own.tenants_size() == 2);
        break;
      }
      case 4:
        now += absl::Milliseconds(50) * static_cast<int>(bytes.size());
        break;
      case 5:
        for (size_t i = 0; i < bytes.size(); ++i)
          taken[of] += tenant.CountRequest(now).ok() ? 1 : 0;
        break;
      case 6:
        tenant.Charge(static_cast<int64_t>(bytes.size()) - 128, now);
        break;
      default:
        if (what & 16 && running[of] > 0) {
          tenant.End(1);
          --running[of];
        } else if (tenant.Begin(1).ok()) {
          ++running[of];
        }
    }
    for (const auto& each : tenants) CheckUse(*each, now);
  }
  // A bucket, and what flowed into it.
  const double most = kPerMinute * (1 + absl::ToDoubleMinutes(now - begin)) + 1;
  for (const int64_t count : taken)
    TANDEM_CHECK(static_cast<double>(count) <= most, count, " of ", most);
}

}  // namespace
}  // namespace tandem::router

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::router::Run(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
