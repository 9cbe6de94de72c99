#include "cli/chaos/fault_plan.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/runtime/random.h"

namespace tandem::cli {
namespace {

constexpr absl::string_view kNames[kChaosFaultKinds] = {"kill", "pause", "partition", "slow-link",
                                                        "loss", "disk",  "memory",    "drain"};

// Whether the fault takes its victim out of service while it lasts.
bool StopsVictim(ChaosFaultKind kind) {
  return kind == ChaosFaultKind::kKill || kind == ChaosFaultKind::kPause ||
         kind == ChaosFaultKind::kMemory || kind == ChaosFaultKind::kDrain;
}

// Time for a restarted process to join.
constexpr absl::Duration kRecovery = absl::Seconds(1);
static_assert(kChaosDrainGrace < kRecovery);

struct Lengths {
  int64_t least_ms, most_ms;
};
Lengths LengthsOf(ChaosFaultKind kind) {
  switch (kind) {
    case ChaosFaultKind::kKill:
      return {200, 1500};
    case ChaosFaultKind::kPause:
    case ChaosFaultKind::kPartition:
      return {200, 3000};
    case ChaosFaultKind::kMemory:
      return {500, 2000};
    case ChaosFaultKind::kDrain: {
      const int64_t all_ms = absl::ToInt64Milliseconds(kChaosDrainTimeout) + 500;
      return {all_ms, all_ms};
    }
    default:
      return {1000, 4000};
  }
}

class Planner {
 public:
  explicit Planner(const FaultPlanOptions& options)
      : options_(options), random_(NewSeededRandom(options.seed)) {
    for (int process = 0; process < options.topology.processes(); ++process)
      if (std::count(options.roles.begin(), options.roles.end(), options.topology.RoleOf(process)) >
          0)
        victims_.push_back(process);
    TANDEM_CHECK(!victims_.empty(), "no process to strike");
  }

  std::vector<ChaosFault> Plan() {
    for (absl::Duration at = options_.period; at < options_.length; at += options_.period) {
      ChaosFault fault = Draw(at);
      // Draws again when this fault would leave no process to serve; that is rare.
      for (int redraws = 0; redraws < kRedrawsMax && !Allowed(fault); ++redraws) fault = Draw(at);
      if (Allowed(fault)) faults_.push_back(fault);
    }
    return std::move(faults_);
  }

 private:
  static constexpr int kRedrawsMax = 100;

  int64_t Between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_->Below(static_cast<uint64_t>(most - least + 1)));
  }

  ChaosFault Draw(absl::Duration at) {
    const ChaosTopology& topology = options_.topology;
    ChaosFault fault;
    fault.at = at;
    fault.kind = options_.kinds[random_->Below(options_.kinds.size())];
    const Lengths lengths = LengthsOf(fault.kind);
    fault.lasts = absl::Milliseconds(Between(lengths.least_ms, lengths.most_ms));
    fault.victim = victims_[random_->Below(victims_.size())];
    if (!IsNetworkFault(fault.kind)) return fault;
    // Half of them cut the victim off from every process, clients included.
    if (random_->Below(2) == 0 && topology.processes() > 1)
      fault.other = (fault.victim + static_cast<int>(Between(1, topology.processes() - 1))) %
                    topology.processes();
    fault.one_way = fault.kind == ChaosFaultKind::kPartition && random_->Below(3) == 0;
    if (fault.kind == ChaosFaultKind::kSlowLink) fault.amount = Between(20, 1000) * 1000;
    if (fault.kind == ChaosFaultKind::kLoss) fault.amount = Between(5, 150);
    return fault;
  }

  bool Allowed(const ChaosFault& fault) const {
    const bool drain = fault.kind == ChaosFaultKind::kDrain;
    if (fault.end() + (drain ? kChaosDrainGrace : absl::ZeroDuration()) > options_.length)
      return false;
    if (!StopsVictim(fault.kind)) return true;
    const absl::string_view role = options_.topology.RoleOf(fault.victim);
    int down = 1;
    for (const ChaosFault& earlier : faults_) {
      if (!StopsVictim(earlier.kind) || earlier.end() + kRecovery <= fault.at) continue;
      if (earlier.victim == fault.victim) return false;
      if (options_.topology.RoleOf(earlier.victim) == role) ++down;
    }
    if (role == "prefill") return true;  // decode nodes compute prompts too
    const int all = role == "router" ? options_.topology.routers : options_.topology.decode;
    // The only router may fail: clients then wait for it.
    return all == 1 || down < all;
  }

  const FaultPlanOptions& options_;
  const std::unique_ptr<Random> random_;
  std::vector<int> victims_;
  std::vector<ChaosFault> faults_;
};

}  // namespace

absl::string_view ChaosFaultName(ChaosFaultKind kind) { return kNames[static_cast<int>(kind)]; }

absl::StatusOr<ChaosFaultKind> ParseChaosFault(absl::string_view name) {
  for (int i = 0; i < kChaosFaultKinds; ++i)
    if (kNames[i] == name) return static_cast<ChaosFaultKind>(i);
  std::string known;
  for (const absl::string_view kind : kNames)
    absl::StrAppend(&known, known.empty() ? "" : ", ", kind);
  return absl::InvalidArgumentError(
      absl::StrCat("faults has \"", name, "\", expected some of ", known));
}

bool IsNetworkFault(ChaosFaultKind kind) {
  return kind == ChaosFaultKind::kPartition || kind == ChaosFaultKind::kSlowLink ||
         kind == ChaosFaultKind::kLoss;
}

absl::string_view ChaosTopology::RoleOf(int process) const {
  if (process < routers) return "router";
  return process < routers + prefill ? "prefill" : "decode";
}

std::string ChaosTopology::NameOf(int process) const {
  const int first = process < routers             ? 0
                    : process < routers + prefill ? routers
                                                  : routers + prefill;
  return absl::StrCat(RoleOf(process), "-", process - first);
}

std::vector<ChaosFault> PlanFaults(const FaultPlanOptions& options) {
  TANDEM_CHECK(!options.kinds.empty() && options.period > absl::ZeroDuration(),
               "nothing to draw faults from");
  return Planner(options).Plan();
}

std::string GroupOf(const ChaosFault& fault, const ChaosTopology& topology) {
  if (fault.kind == ChaosFaultKind::kDisk) return "disk";
  return absl::StrCat(ChaosFaultName(fault.kind), " ", topology.RoleOf(fault.victim));
}

std::string ToText(const ChaosFault& fault, const ChaosTopology& topology) {
  std::string text =
      absl::StrFormat("%8.1fs for %4.1fs  %s", absl::ToDoubleSeconds(fault.at),
                      absl::ToDoubleSeconds(fault.lasts), ChaosFaultName(fault.kind));
  if (fault.kind == ChaosFaultKind::kDisk) return text;
  absl::StrAppend(&text, " ", topology.NameOf(fault.victim));
  if (!IsNetworkFault(fault.kind)) return text;
  absl::StrAppend(
      &text, fault.one_way ? " -> " : " - ",
      fault.other == ChaosFault::kEveryProcess ? "everybody" : topology.NameOf(fault.other));
  if (fault.kind == ChaosFaultKind::kSlowLink)
    absl::StrAppend(&text, " at ", fault.amount / 1000, " kB/s");
  if (fault.kind == ChaosFaultKind::kLoss)
    absl::StrAppendFormat(&text, " of %.1f %%", static_cast<double>(fault.amount) / 10);
  return text;
}

}  // namespace tandem::cli
