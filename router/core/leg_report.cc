#include "router/core/leg_report.h"

#include <algorithm>
#include <cmath>

#include "common/base/node_id.h"
#include "router/fleet/fleet.h"

namespace tandem::router {
namespace {

int64_t Count(int64_t reported) { return std::clamp<int64_t>(reported, 0, kReportedCountMax); }

double Milliseconds(double reported) {
  return std::isfinite(reported)
             ? std::clamp(reported, 0.0, absl::ToDoubleMilliseconds(kReportedTimeMax))
             : 0;
}

void Bound(v1::TokensBySource& tokens) {
  tokens.set_computed(Count(tokens.computed()));
  tokens.set_received(Count(tokens.received()));
  tokens.set_cached(Count(tokens.cached()));
  tokens.set_from_host_memory(Count(tokens.from_host_memory()));
  tokens.set_from_disk(Count(tokens.from_disk()));
  tokens.set_fetched(Count(tokens.fetched()));
}

void Bound(v1::Installed& installed) {
  if (installed.has_tokens()) Bound(*installed.mutable_tokens());
  if (installed.has_prefill_tokens()) Bound(*installed.mutable_prefill_tokens());
  installed.set_kv_bytes_received(
      std::clamp<int64_t>(installed.kv_bytes_received(), 0, kReportedBytesMax));
  installed.set_kv_transfer_ms(Milliseconds(installed.kv_transfer_ms()));
  installed.set_kv_receive_ms(Milliseconds(installed.kv_receive_ms()));
  installed.set_kv_hidden_ms(Milliseconds(installed.kv_hidden_ms()));
  installed.set_kv_beyond_ms(Milliseconds(installed.kv_beyond_ms()));
  if (installed.transport().size() > kTransportNameMax) installed.clear_transport();
}

void Bound(v1::FetchedKv& fetched) {
  fetched.set_kv_bytes_received(
      std::clamp<int64_t>(fetched.kv_bytes_received(), 0, kReportedBytesMax));
  fetched.set_kv_transfer_ms(Milliseconds(fetched.kv_transfer_ms()));
  fetched.set_kv_receive_ms(Milliseconds(fetched.kv_receive_ms()));
  if (fetched.transport().size() > kTransportNameMax) fetched.clear_transport();
}

void Bound(v1::LentUse& lent) {
  auto& creditors = *lent.mutable_creditors();
  if (creditors.size() > Fleet::kDebtsMax)
    creditors.DeleteSubrange(Fleet::kDebtsMax, creditors.size() - Fleet::kDebtsMax);
  for (v1::LentUse::Creditor& creditor : creditors) {
    if (creditor.node_id().size() > kNodeIdBytesMax)
      creditor.mutable_node_id()->resize(kNodeIdBytesMax);
    creditor.set_loans(std::max(creditor.loans(), 0));
    creditor.set_blocks(Count(creditor.blocks()));
  }
  lent.set_tokens_max(Count(lent.tokens_max()));
  lent.set_steps(Count(lent.steps()));
  lent.set_awaited_ms(Milliseconds(lent.awaited_ms()));
  lent.set_locality(std::isfinite(lent.locality()) ? std::clamp(lent.locality(), 0.0, 1.0) : 0);
}

}  // namespace

v1::NodeEvent BoundedLegReport(const v1::NodeEvent& event) {
  v1::NodeEvent bounded = event;
  if (bounded.has_prefill_finished()) {
    v1::PrefillFinished& finished = *bounded.mutable_prefill_finished();
    if (finished.has_tokens()) Bound(*finished.mutable_tokens());
    if (finished.has_fetched()) Bound(*finished.mutable_fetched());
  }
  if (bounded.has_reserved() && bounded.reserved().has_fetched())
    Bound(*bounded.mutable_reserved()->mutable_fetched());
  if (bounded.has_installed()) Bound(*bounded.mutable_installed());
  if (bounded.has_leg_finished() && bounded.leg_finished().has_lent())
    Bound(*bounded.mutable_leg_finished()->mutable_lent());
  return bounded;
}

}  // namespace tandem::router
