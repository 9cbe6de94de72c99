// Schedules as text: implements FaultName, ToText and ParseSchedule (sim/world/schedule.h).
#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "router/core/request_input.h"
#include "router/placement/placement_policy.h"
#include "sim/world/schedule.h"

namespace tandem::sim {
namespace {

constexpr absl::string_view kFaultNames[kFaultKinds] = {
    "crash",        "pause",         "slow",        "partition",     "one-way",
    "slow-link",    "cut",           "lose-frames", "double-frames", "corrupt-frames",
    "delay-frames", "corrupt-block", "drain",       "hang-storage"};

// What a schedule that is read may have: more takes memory or time without end.
constexpr int64_t kProcessesMax = 64, kBlocksMax = 1 << 20, kPoolTokensMax = 1 << 20;
constexpr int64_t kTokensMax = 2048;  // the model's context, see EngineOptions
constexpr int64_t kLongestUs = 3'600'000'000, kStepMaxUs = 10'000'000;
constexpr int64_t kAmountMax = 1'000'000'000'000, kSlownessMax = 1000;
constexpr int64_t kSeedMax = std::numeric_limits<int64_t>::max();
constexpr auto kPlacementMax = static_cast<int64_t>(router::kPlacementPolicies.size()) - 1;
constexpr size_t kLinesMax = 10'000;

// Visits each field of a record with its name, its least and its greatest value, for printing and
// for parsing.
template <typename Visit>
void VisitFields(Topology& t, Visit visit) {
  visit("routers", t.routers, 1, kProcessesMax);
  visit("prefill", t.prefill_nodes, 0, kProcessesMax);
  visit("decode", t.decode_nodes, 1, kProcessesMax);
  visit("blocks", t.blocks_per_node, 2, kBlocksMax);
  visit("block_tokens", t.block_tokens, 1, 256);
  visit("batch", t.max_batch_tokens, 1, 1 << 20);
  visit("sequences", t.max_sequences, 1, 1 << 20);
  visit("eos_every", t.eos_every, 0, 1 << 20);
  visit("local_prefill", t.local_prefill_tokens, 0, 1 << 20);
  visit("placement", t.placement, 0, kPlacementMax);
  visit("frame_blocks", t.frame_blocks, 1, 1 << 20);
  visit("in_flight", t.bytes_in_flight, 1, 1 << 30);
  visit("step_us", t.step_us, 0, kStepMaxUs);
  visit("control_us", t.control_us, 0, kStepMaxUs);
  visit("kv_us", t.kv_us, 0, kStepMaxUs);
  visit("kv_rate", t.kv_bytes_per_second, 1, kAmountMax);
  visit("hop_us", t.hop_us, 0, kStepMaxUs);
  visit("rendezvous", t.rendezvous, 0, 1);
  visit("hold_frames", t.hold_frames, 0, 1);
  visit("reuse_addresses", t.reuse_addresses, 0, 1);
  visit("skew_us", t.clock_skew_us, 0, kLongestUs);
  visit("drain_us", t.drain_us, 0, kLongestUs);
  visit("row_us", t.row_us, 0, kStepMaxUs);
  visit("itl_slo_us", t.itl_slo_us, 0, kLongestUs);
  visit("disk_blocks", t.disk_blocks, 0, kBlocksMax);
  visit("host_blocks", t.host_blocks, 0, kBlocksMax);
  visit("lend_blocks", t.lend_blocks, 0, kBlocksMax);
  visit("unit_blocks", t.unit_blocks, 1, 64);
  visit("plan_loans", t.plan_loans, 0, 1);
  visit("lent_step_percent", t.lent_step_percent, 0, 1000);
  visit("window_slots", t.window_slots, 0, kBlocksMax);
  visit("window_tokens", t.window_tokens, 1, 1 << 20);
  visit("index_blocks", t.index_blocks, 0, kBlocksMax);
  visit("router_sequences", t.router_sequences, 0, 1 << 20);
  visit("disk_us", t.disk_us, 0, kStepMaxUs);
  visit("disk_fails", t.disk_fails, 0, 1 << 20);
}
template <typename Visit>
void VisitFields(SimRequest& r, Visit visit) {
  visit("at_us", r.at_us, 0, kLongestUs);
  visit("router", r.router, 0, kProcessesMax);
  visit("family", r.family, 0, 1 << 20);
  visit("shared", r.shared_tokens, 0, kTokensMax);
  visit("own", r.own_tokens, 1, kTokensMax);
  visit("own_seed", r.own_seed, 0, kSeedMax);
  visit("max_tokens", r.max_tokens, 1, kTokensMax);
  visit("sampled", r.sampled, 0, 1);
  visit("seed", r.seed, 0, kSeedMax);
  visit("salt", r.salt, 0, 1 << 20);
  visit("answers", r.answers, 1, 64);
  visit("priority", r.priority, -1000, 1000);
  visit("cancel_us", r.cancel_us, 0, kLongestUs);
  visit("again_seed", r.again_seed, 0, kSeedMax);
  visit("turn", r.turn_tokens, 0, kTokensMax);
  visit("logprobs", r.logprobs, 0, 20);
  visit("beams", r.beams, 0, router::kBeamWidthMax);
  visit("ttft_us", r.ttft_us, 0, kLongestUs);
  visit("gap_us", r.gap_us, 0, kLongestUs);
  visit("refuse_late", r.refuse_late, 0, 1);
}
template <typename Visit>
void VisitFields(Fault& f, Visit visit) {
  visit("at_us", f.at_us, 0, kLongestUs);
  visit("target", f.target, 0, kProcessesMax);
  visit("other", f.other, 0, kProcessesMax);
  visit("lasts_us", f.lasts_us, 0, kLongestUs);
  visit("amount", f.amount, 0, kAmountMax);
}

template <typename Record>
std::string FieldsText(Record record) {
  std::string text;
  VisitFields(record, [&](absl::string_view name, int64_t value, int64_t, int64_t) {
    absl::StrAppend(&text, " ", name, "=", value);
  });
  return text;
}

// The fields of `values` that the record does not have are an error.
template <typename Record>
absl::Status ParseFields(std::map<std::string, std::string> values, Record& record) {
  absl::Status status;
  VisitFields(record, [&](absl::string_view name, int64_t& value, int64_t low, int64_t high) {
    const auto it = values.find(std::string(name));
    if (!status.ok()) return;
    if (it == values.end()) {
      status = absl::InvalidArgumentError(absl::StrCat(name, " is missing"));
      return;
    }
    if (!absl::SimpleAtoi(it->second, &value) || value < low || value > high)
      status = absl::InvalidArgumentError(absl::StrCat(
          name, "=", it->second, ", expected a whole number from ", low, " to ", high));
    values.erase(it);
  });
  if (status.ok() && !values.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("\"", values.begin()->first, "\" is no field of this line"));
  return status;
}

}  // namespace

absl::string_view FaultName(FaultKind kind) { return kFaultNames[static_cast<int>(kind)]; }

std::string ToText(const Fault& fault) {
  return absl::StrCat("fault kind=", FaultName(fault.kind), FieldsText(fault));
}

std::string ToText(const Schedule& schedule) {
  std::string text = absl::StrCat("schedule seed=", schedule.seed, "\ntopology",
                                  FieldsText(schedule.topology), "\n");
  for (const SimRequest& request : schedule.requests)
    absl::StrAppend(&text, "request", FieldsText(request), "\n");
  for (const Fault& fault : schedule.faults) absl::StrAppend(&text, ToText(fault), "\n");
  return text;
}

namespace {

struct Parsing {
  Schedule schedule;
  int seeds = 0, topologies = 0;
};

absl::Status ParseFault(std::map<std::string, std::string> values, Fault& fault) {
  const auto name = std::find(std::begin(kFaultNames), std::end(kFaultNames), values["kind"]);
  if (name == std::end(kFaultNames))
    return absl::InvalidArgumentError(absl::StrCat("kind=", values["kind"], " is not a fault"));
  fault.kind = static_cast<FaultKind>(name - std::begin(kFaultNames));
  values.erase("kind");
  RETURN_IF_ERROR(ParseFields(std::move(values), fault));
  if (fault.kind == FaultKind::kSlow && (fault.amount < 1 || fault.amount > kSlownessMax))
    return absl::InvalidArgumentError(
        absl::StrCat("amount=", fault.amount, ", expected for slow 1 to ", kSlownessMax));
  return absl::OkStatus();
}

absl::Status ParseLine(const std::vector<std::string>& words, Parsing& parsing) {
  std::map<std::string, std::string> values;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    if (!values.insert(pair).second)
      return absl::InvalidArgumentError(absl::StrCat(pair.first, " is given twice"));
  }
  Schedule& schedule = parsing.schedule;
  if (words[0] == "schedule") {
    ++parsing.seeds;
    if (values.size() != 1 || !absl::SimpleAtoi(values["seed"], &schedule.seed))
      return absl::InvalidArgumentError("expected seed=, a whole number, and no other field");
    return absl::OkStatus();
  }
  if (words[0] == "topology") {
    ++parsing.topologies;
    return ParseFields(std::move(values), schedule.topology);
  }
  if (schedule.requests.size() + schedule.faults.size() >= kLinesMax)
    return absl::InvalidArgumentError(
        absl::StrCat("expected at most ", kLinesMax, " requests and faults"));
  if (words[0] == "request")
    return ParseFields(std::move(values), schedule.requests.emplace_back());
  if (words[0] == "fault") return ParseFault(std::move(values), schedule.faults.emplace_back());
  return absl::InvalidArgumentError(
      absl::StrCat("\"", words[0], "\", expected schedule, topology, request or fault"));
}

// What a topology's fields may be together.
absl::Status CheckTopology(const Topology& t) {
  const auto refused = [](auto... why) {
    return absl::InvalidArgumentError(absl::StrCat("topology: ", why...));
  };
  if (t.processes() > kProcessesMax)
    return refused(t.processes(), " processes, expected at most ", kProcessesMax);
  if (256 % t.block_tokens != 0)
    return refused("block_tokens=", t.block_tokens, ", expected a divisor of 256");
  if (t.blocks_per_node * t.block_tokens > kPoolTokensMax)
    return refused("blocks=", t.blocks_per_node, " of block_tokens=", t.block_tokens,
                   ", expected at most ", kPoolTokensMax, " tokens in all");
  if (t.lend_blocks > t.blocks_per_node)
    return refused("lend_blocks=", t.lend_blocks, ", expected at most blocks");
  if (t.window_slots > t.blocks_per_node ||
      (t.window_slots > 0 && t.window_slots < LeastWindowSlots(t)))
    return refused("window_slots=", t.window_slots, ", expected 0, or ", LeastWindowSlots(t),
                   " to blocks");
  return absl::OkStatus();
}

// Whether the model and a node, with all that others may lend it, could hold the request.
absl::Status CheckLength(const Topology& t, const SimRequest& r) {
  // A second turn's prompt is the first one with its answer.
  const int64_t turn = r.turn_tokens > 0 ? r.turn_tokens + r.max_tokens : 0;
  const int64_t tokens = r.shared_tokens + r.own_tokens + r.max_tokens + turn;
  const absl::string_view what = r.turn_tokens > 0
                                     ? "shared + own + max_tokens + turn + max_tokens = "
                                     : "shared + own + max_tokens = ";
  if (tokens > kTokensMax)
    return absl::InvalidArgumentError(
        absl::StrCat("request: ", what, tokens, ", at most ", kTokensMax));
  const int64_t others = t.prefill_nodes + t.decode_nodes - 1;
  const int64_t room = (t.blocks_per_node + others * t.lend_blocks) * t.block_tokens;
  if (tokens > room)
    return absl::InvalidArgumentError(absl::StrCat("request: ", what, tokens,
                                                   ", a node holds with what others lend at most ",
                                                   room, " tokens"));
  return absl::OkStatus();
}

absl::Status CheckSchedule(const Schedule& s) {
  const Topology& t = s.topology;
  RETURN_IF_ERROR(CheckTopology(t));
  for (const SimRequest& r : s.requests) {
    if (r.router >= t.routers)
      return absl::InvalidArgumentError(
          absl::StrCat("request: router=", r.router, ", the topology has ", t.routers));
    if (r.turn_tokens > 0 && (r.beams > 0 || r.answers > 1))
      return absl::InvalidArgumentError("request: turn is not 0, expected answers=1 and beams=0");
    RETURN_IF_ERROR(CheckLength(t, r));
  }
  for (const Fault& f : s.faults)
    if (f.target >= t.processes() || f.other >= t.processes())
      return absl::InvalidArgumentError(absl::StrCat("fault: the topology has ", t.processes(),
                                                     " processes, target=", f.target,
                                                     " other=", f.other));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Schedule> ParseSchedule(absl::string_view text) {
  Parsing parsing;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipWhitespace());
    if (words.empty() || words[0][0] == '#') continue;
    if (const absl::Status status = ParseLine(words, parsing); !status.ok())
      return absl::InvalidArgumentError(absl::StrCat("line ", number, ": ", status.message()));
  }
  if (parsing.seeds != 1 || parsing.topologies != 1)
    return absl::InvalidArgumentError(absl::StrCat("expected one line schedule and one topology, ",
                                                   parsing.seeds, " and ", parsing.topologies,
                                                   " came"));
  RETURN_IF_ERROR(CheckSchedule(parsing.schedule));
  return std::move(parsing.schedule);
}

}  // namespace tandem::sim
