// Tells whether a cluster still holds anything for requests that have ended.
// Thread safety: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cli/client/client.h"

namespace tandem::testing {

// What routers and nodes still hold, in words; empty when nothing.
inline std::string Holdings(const v1::GetStatusResponse& status) {
  std::string held;
  const auto note = [&](const std::string& who, absl::string_view what, int64_t count) {
    if (count != 0) absl::StrAppend(&held, who, " ", what, "=", count, "; ");
  };
  note("router", "requests_running", status.router().requests_running());
  note("router", "requests_queued", status.router().requests_queued());
  for (const v1::NodeStatus& node : status.nodes()) {
    if (node.state() == "lost") continue;
    const v1::NodeLoad& load = node.load();
    note(node.node_id(), "blocks_used", load.blocks_used());
    note(node.node_id(), "blocks_quarantined", load.blocks_quarantined());
    note(node.node_id(), "leases", load.leases());
    note(node.node_id(), "exports", load.exports());
    note(node.node_id(), "sequences_running", load.sequences_running());
    note(node.node_id(), "sequences_waiting", load.sequences_waiting());
    note(node.node_id(), "blocks beyond free and cached",
         load.blocks_total() - load.blocks_free() - load.blocks_cached());
  }
  return held;
}

// Waits until `holds(status)` is empty. Errors: kDeadlineExceeded carries its last text.
template <typename Holds>
absl::StatusOr<v1::GetStatusResponse> AwaitStatus(cli::Client& client, absl::Duration timeout,
                                                  const Holds& holds) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::Mutex mutex;
  const bool never = false;
  while (true) {
    auto status = client.GetStatus(absl::Seconds(5));
    if (!status.ok()) return status.status();
    const std::string held = holds(*status);
    if (held.empty()) return status;
    if (absl::Now() > deadline) return absl::DeadlineExceededError(held);
    absl::MutexLock lock(&mutex);
    mutex.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(20));
  }
}

inline absl::StatusOr<v1::GetStatusResponse> AwaitQuiet(cli::Client& client,
                                                        absl::Duration timeout) {
  return AwaitStatus(client, timeout, Holdings);
}

}  // namespace tandem::testing
