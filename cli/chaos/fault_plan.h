// The faults of one chaos run, as data: which fault hits which process, when and for how long. The
// plan is drawn from a seed before the cluster starts, printed, then carried out.
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::cli {

enum class ChaosFaultKind {
  kKill,       // SIGKILL; started again when the fault ends
  kPause,      // SIGSTOP, then SIGCONT
  kPartition,  // no packet passes between `victim` and `other`
  kSlowLink,   // packets between them pass at `amount` bytes a second
  kLoss,       // `amount` of a thousand packets are lost
  kDisk,       // /dev/shm is full
  kMemory,     // the victim gets no more memory; started again if it dies of that
  kDrain,      // SIGTERM; must end with exit code 0 (a router: or 1), then started again
};
inline constexpr int kChaosFaultKinds = 8;
// The drain timeout of every process in a chaos run; work that is left then is migrated or resumed.
inline constexpr absl::Duration kChaosDrainTimeout = absl::Seconds(2);
// A process that drains may take this much longer than its fault lasts before that counts as a
// hang. Shorter than the time for which nothing else stops the victim after a fault.
inline constexpr absl::Duration kChaosDrainGrace = absl::Milliseconds(900);
absl::string_view ChaosFaultName(ChaosFaultKind kind);
// kInvalidArgument names the text and the known kinds.
absl::StatusOr<ChaosFaultKind> ParseChaosFault(absl::string_view name);
// Whether the fault needs control over the network between processes.
bool IsNetworkFault(ChaosFaultKind kind);

// Processes are numbered routers first, then prefill nodes, then decode nodes.
struct ChaosTopology {
  int routers = 2, prefill = 2, decode = 3;

  int processes() const { return routers + prefill + decode; }
  absl::string_view RoleOf(int process) const;  // "router", "prefill", "decode"
  std::string NameOf(int process) const;        // "decode-1"
};

struct ChaosFault {
  static constexpr int kEveryProcess = -1;

  absl::Duration at, lasts;  // since the load began
  ChaosFaultKind kind = ChaosFaultKind::kKill;
  int victim = 0;
  int other = kEveryProcess;  // network faults: at the far end of the link
  bool one_way = false;       // partitions: only packets from the victim are lost
  int64_t amount = 0;

  absl::Duration end() const { return at + lasts; }
};

struct FaultPlanOptions {
  uint64_t seed = 0;
  ChaosTopology topology;
  absl::Duration period = absl::Seconds(2), length = absl::Minutes(1);
  std::vector<ChaosFaultKind> kinds;
  std::vector<std::string> roles = {"router", "prefill", "decode"};  // that victims are of
};

// One fault each `period`, all over before `length`. At any time at least one router and one decode
// node are neither killed, paused nor short of memory, so that requests can be served.
// REQUIRES: kinds not empty, a process of `roles` in the topology, period > 0.
std::vector<ChaosFault> PlanFaults(const FaultPlanOptions& options);

// The group under which the report counts a fault: "kill decode", "loss".
std::string GroupOf(const ChaosFault& fault, const ChaosTopology& topology);
// "    4.0s for  1.2s  partition decode-1 -> router-0".
std::string ToText(const ChaosFault& fault, const ChaosTopology& topology);

}  // namespace tandem::cli
