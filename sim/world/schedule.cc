#include "sim/world/schedule.h"

#include <algorithm>
#include <memory>

#include "common/runtime/random.h"
#include "router/placement/placement_policy.h"

namespace tandem::sim {
namespace {

class Drawer {
 public:
  explicit Drawer(uint64_t seed) : random_(NewSeededRandom(seed)) {}

  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_->Below(static_cast<uint64_t>(high - low + 1)));
  }
  bool OneIn(int64_t n) { return random_->Below(static_cast<uint64_t>(n)) == 0; }

  Topology DrawTopology() {
    Topology t;
    t.routers = OneIn(3) ? 2 : 1;
    t.prefill_nodes = Between(0, 2) + (OneIn(2) ? 1 : 0);
    t.decode_nodes = Between(1, 3);
    t.blocks_per_node = OneIn(3) ? Between(14, 24) : Between(32, 96);
    t.block_tokens = OneIn(2) ? 8 : 4;
    t.max_batch_tokens = Between(8, 96);
    t.max_sequences = Between(2, 12);
    t.eos_every = OneIn(3) ? Between(8, 40) : 0;
    t.local_prefill_tokens = OneIn(3) ? 4 : 16;
    t.frame_blocks = OneIn(4) ? Between(4, 16) : Between(1, 3);
    t.bytes_in_flight = OneIn(2) ? 256 : 8192;
    t.step_us = Between(100, 2000);
    t.control_us = Between(20, 600);
    t.kv_us = OneIn(4) ? Between(1000, 8000) : Between(10, 600);
    t.kv_bytes_per_second = OneIn(3) ? 300'000 : 50'000'000;
    t.hop_us = OneIn(3) ? 0 : Between(5, 300);
    t.rendezvous = OneIn(4) ? 0 : 1;
    t.hold_frames = OneIn(2) ? 1 : 0;
    t.reuse_addresses = OneIn(2) ? 1 : 0;
    t.clock_skew_us = OneIn(2) ? Between(1000, 3'600'000'000) : 0;
    // A short drain timeout: half of it passes while sequences still run.
    t.drain_us = OneIn(3) ? 500'000 : Between(2'000, 30'000);
    t.placement =
        OneIn(4) ? Between(1, static_cast<int64_t>(router::kPlacementPolicies.size()) - 1) : 0;
    return t;
  }

  // How long steps take, and how long they should.
  void DrawCosts(Topology& t) {
    t.row_us = OneIn(2) ? Between(1, 100) : 0;
    // From less than a step to all that a step can take.
    t.itl_slo_us = OneIn(2) ? Between(1, 4 * t.step_us) : 0;
  }

  // Whether nodes have disks, and how slow and unreliable those are.
  void DrawDisks(Topology& t) {
    t.disk_blocks = OneIn(2) ? Between(4, 3 * t.blocks_per_node) : 0;
    t.disk_us = OneIn(3) ? Between(1'000, 20'000) : Between(10, 1'000);
    t.disk_fails = OneIn(4) ? Between(2, 10) : 0;
  }

  // Whether nodes have a tier in host memory, with or without a disk below it.
  void DrawHostTier(Topology& t) { t.host_blocks = OneIn(2) ? Between(2, t.blocks_per_node) : 0; }

  // Whether nodes lend, and how much at once.
  void DrawLending(Topology& t) {
    t.lend_blocks = OneIn(2) ? Between(t.blocks_per_node / 4, t.blocks_per_node / 2) : 0;
    t.unit_blocks = Between(1, 3);
    t.plan_loans = OneIn(4) ? 0 : 1;
    t.lent_step_percent = OneIn(2) ? Between(1, 100) : 0;
  }

  // Whether a layer has a window, and for how many blocks it has memory. REQUIRES: DrawDisks.
  void DrawWindow(Topology& t) {
    t.window_tokens = Between(1, 5 * t.block_tokens);
    // Room for a few sequences: the router learns of each that ended by heartbeat.
    const int64_t least = 4 * LeastWindowSlots(t);
    if (!OneIn(3) || least > t.blocks_per_node) return;
    t.window_slots = OneIn(2) ? least : Between(least, t.blocks_per_node);
  }

  // Whether routers reach their bounds: a prefix index that cannot name all blocks, and fewer
  // sequences than the clients ask for, but enough for any one request.
  void DrawBounds(Topology& t) {
    const int64_t blocks = t.blocks_per_node * (t.prefill_nodes + t.decode_nodes);
    t.index_blocks = OneIn(4) ? Between(4, blocks / 2) : 0;
    t.router_sequences = OneIn(6) ? Between(6, 12) : 0;
  }

  // Makes an answer so long that its sequence fits into no node, but into a node and what another
  // one lends.
  void Lengthen(const Topology& t, SimRequest& r) {
    if (!OneIn(3) || r.beams != 0 || r.answers != 1) return;
    // With windows fewer units can be lent: two sequences that are each larger than a pool could
    // keep each other from going on for long.
    const int64_t lent = t.window_slots > 0 ? 0 : t.lend_blocks / 2;
    const int64_t room = (t.blocks_per_node + lent) * t.block_tokens;
    const int64_t tokens = std::min<int64_t>(Between(room / 2, room), 900);
    if (OneIn(2)) {
      r.own_tokens = std::max(r.own_tokens, tokens - r.shared_tokens - r.max_tokens);
    } else {
      r.max_tokens = std::max(r.max_tokens, tokens - r.own_tokens - r.shared_tokens);
    }
  }

  // The second turn's prompt and answer fit into half of a pool, as the first one's.
  void DrawTurn(const Topology& t, SimRequest& r) {
    const int64_t history = r.shared_tokens + r.own_tokens + r.max_tokens;
    const int64_t room = t.blocks_per_node * t.block_tokens / 2 - history - r.max_tokens - 1;
    if (!OneIn(3) || r.answers > 1 || r.beams > 0 || room < 1) return;
    r.turn_tokens = Between(1, std::min<int64_t>(room, 40));
  }

  // From goals that nothing can meet to such as all requests meet.
  void DrawGoals(const Topology& t, SimRequest& r) {
    r.ttft_us = OneIn(2) ? Between(1, OneIn(2) ? 10 * t.step_us : 1'000'000) : 0;
    r.gap_us = OneIn(4) ? Between(1, 8 * t.step_us) : 0;
    r.refuse_late = r.ttft_us > 0 && OneIn(3) ? 1 : 0;
  }

  SimRequest DrawRequest(const Topology& t, int64_t at_us, int64_t families) {
    SimRequest r;
    r.at_us = at_us;
    r.router = Between(0, t.routers - 1);
    r.family = Between(0, families - 1);
    // Prompt and answer fit into half of the smallest pool.
    const int64_t room = t.blocks_per_node * t.block_tokens / 2;
    r.max_tokens = Between(1, std::min<int64_t>(24, room / 3));
    const int64_t prompt_max = std::min<int64_t>(room - r.max_tokens - 1, 120);
    r.own_tokens = Between(1, prompt_max);
    r.shared_tokens = Between(0, prompt_max - r.own_tokens);
    if (OneIn(2)) std::swap(r.own_tokens, r.shared_tokens);
    r.own_tokens = std::max<int64_t>(1, r.own_tokens);
    r.own_seed = OneIn(4) ? 1 : Between(1, 1 << 30);
    r.sampled = OneIn(2) ? 1 : 0;
    r.seed = Between(0, 1 << 30);
    r.salt = OneIn(3) ? Between(1, 2) : 0;
    r.answers = OneIn(5) ? Between(2, 4) : 1;
    r.priority = OneIn(4) ? Between(-1, 1) : 0;
    r.cancel_us = OneIn(5) ? Between(1, 40'000) : 0;
    r.again_seed = r.cancel_us != 0 ? Between(1, 1 << 30) : 0;
    r.logprobs = OneIn(2) ? 1 : 0;
    r.beams = OneIn(12) ? Between(2, 5) : 0;
    return r;
  }

  Fault DrawFault(const Topology& t, FaultKind kind, int64_t at_us) {
    Fault f;
    f.at_us = at_us;
    f.kind = kind;
    f.target = Between(0, t.processes() - 1);
    f.lasts_us = OneIn(3) ? Between(100'000, 900'000) : Between(500, 100'000);
    if (kind == FaultKind::kCutStream) f.target = Between(0, t.routers - 1);
    const bool needs_node = kind == FaultKind::kCutStream || kind == FaultKind::kSlowLink;
    f.other = needs_node ? Between(t.routers, t.processes() - 1) : Between(0, t.processes() - 1);
    if (kind == FaultKind::kCorruptBlock || kind == FaultKind::kDrain ||
        kind == FaultKind::kSlowLink)
      f.target = Between(t.routers, t.processes() - 1);
    // This is the hardest case for a receiver: a sender that still runs after its router has given
    // it up.
    const bool senders = t.prefill_nodes > 0 && OneIn(2);
    if (senders && kind == FaultKind::kCutStream)
      f.other = Between(t.routers, t.routers + t.prefill_nodes - 1);
    if (senders && (kind == FaultKind::kPause || kind == FaultKind::kSlow))
      f.target = Between(t.routers, t.routers + t.prefill_nodes - 1);
    if (f.other == f.target) f.other = (f.target + 1) % t.processes();
    switch (kind) {
      case FaultKind::kSlow:
        f.amount = Between(2, 50);
        break;
      case FaultKind::kSlowLink:
        f.amount = Between(2'000, 200'000);
        break;
      case FaultKind::kLoseFrames:
      case FaultKind::kDuplicateFrames:
      case FaultKind::kCorruptFrames:
        f.amount = Between(2, 40);
        break;
      case FaultKind::kDelayFrames:
        f.amount = Between(500, 60'000);
        break;
      default:
        break;
    }
    return f;
  }

  // Drains a decode node while it may be generating.
  Fault DrawDrainUnderLoad(const Schedule& schedule) {
    const Topology& t = schedule.topology;
    const auto last = static_cast<int64_t>(schedule.requests.size()) - 1;
    Fault f;
    f.kind = FaultKind::kDrain;
    f.at_us = schedule.requests[Between(0, last)].at_us + Between(500, 12'000);
    f.target = Between(t.routers + t.prefill_nodes, t.processes() - 1);
    f.lasts_us = Between(500, 100'000);
    return f;
  }

  // While prompts wait for what lies in storage; also for longer than a node waits for it.
  std::vector<Fault> DrawHangs(const Topology& t, const std::vector<SimRequest>& requests) {
    std::vector<Fault> hangs;
    if ((t.disk_blocks == 0 && t.host_blocks == 0) || !OneIn(4)) return hangs;
    const int64_t count = Between(1, 3);
    for (int64_t i = 0; i < count; ++i) {
      const SimRequest& request = requests[Between(0, std::ssize(requests) - 1)];
      Fault& f = hangs.emplace_back();
      f.kind = FaultKind::kHangStorage;
      f.at_us = request.at_us + Between(0, 12'000);
      f.target = Between(t.routers, t.processes() - 1);
      f.lasts_us = OneIn(3) ? Between(1'000'000, 4'000'000) : Between(1'000, 200'000);
    }
    return hangs;
  }

 private:
  const std::unique_ptr<Random> random_;
};

// At any time; or soon after a request or another fault began, when more is in flight.
int64_t DrawFaultTime(Drawer& draw, const Schedule& schedule, int64_t span_us) {
  const int64_t way = draw.Between(0, 2);
  if (way == 0 && !schedule.faults.empty())
    return schedule.faults.back().at_us + draw.Between(0, 3'000);
  if (way != 1) return draw.Between(20'000, 40'000 + span_us);
  const auto last = static_cast<int64_t>(schedule.requests.size()) - 1;
  return schedule.requests[draw.Between(0, last)].at_us + draw.Between(100, 8'000);
}

}  // namespace

Schedule DrawSchedule(uint64_t seed) {
  Drawer draw(seed ^ 0x7363686564756c65);  // "schedule": apart from the run's own draws
  Schedule schedule;
  schedule.seed = seed;
  schedule.topology = draw.DrawTopology();
  Drawer(seed ^ 0x636f737473).DrawCosts(schedule.topology);     // "costs"
  Drawer(seed ^ 0x6469736b73).DrawDisks(schedule.topology);     // "disks"
  Drawer(seed ^ 0x686f7374).DrawHostTier(schedule.topology);    // "host"
  Drawer(seed ^ 0x6c656e64).DrawLending(schedule.topology);     // "lend"
  Drawer(seed ^ 0x77696e646f77).DrawWindow(schedule.topology);  // "window"
  Drawer(seed ^ 0x626f756e6473).DrawBounds(schedule.topology);  // "bounds"
  const Topology& t = schedule.topology;

  const int64_t span_us = draw.Between(10'000, 300'000);
  const int64_t families = draw.Between(1, 3);
  const int64_t requests = draw.OneIn(4) ? draw.Between(1, 4) : draw.Between(4, 14);
  for (int64_t i = 0; i < requests; ++i)
    schedule.requests.push_back(
        draw.DrawRequest(t, draw.Between(20'000, 20'000 + span_us), families));

  // Draw first which kinds of fault occur: if all kinds occurred in every schedule, they would hide
  // each other's effects.
  std::vector<FaultKind> kinds;
  for (int kind = 0; kind <= static_cast<int>(FaultKind::kDrain); ++kind)
    if (draw.OneIn(4)) kinds.push_back(static_cast<FaultKind>(kind));
  const int64_t faults = kinds.empty() ? 0 : draw.Between(1, 7);
  for (int64_t i = 0; i < faults; ++i) {
    const FaultKind kind = kinds[draw.Between(0, static_cast<int64_t>(kinds.size()) - 1)];
    schedule.faults.push_back(draw.DrawFault(t, kind, DrawFaultTime(draw, schedule, span_us)));
  }
  if (std::count(kinds.begin(), kinds.end(), FaultKind::kDrain) > 0 && t.decode_nodes > 1)
    for (int i = 0; i < 4; ++i) schedule.faults.push_back(draw.DrawDrainUnderLoad(schedule));
  // Draw this fault more often, because most blocks that it damages are empty at that time.
  if (std::count(kinds.begin(), kinds.end(), FaultKind::kCorruptBlock) > 0)
    for (int i = 0; i < 12; ++i) {
      const int64_t at_us = DrawFaultTime(draw, schedule, span_us);
      schedule.faults.push_back(draw.DrawFault(t, FaultKind::kCorruptBlock, at_us));
    }
  for (const Fault& hang : Drawer(seed ^ 0x68616e67).DrawHangs(t, schedule.requests))  // "hang"
    schedule.faults.push_back(hang);
  if (t.lend_blocks > 0 && t.prefill_nodes + t.decode_nodes > 1) {
    Drawer lengthen(seed ^ 0x6c6f6e67);  // "long"
    for (SimRequest& request : schedule.requests) lengthen.Lengthen(t, request);
  }
  Drawer turns(seed ^ 0x7475726e);  // "turn"
  for (SimRequest& request : schedule.requests) turns.DrawTurn(t, request);
  Drawer goals(seed ^ 0x676f616c73);  // "goals"
  if (goals.OneIn(2))
    for (SimRequest& request : schedule.requests) goals.DrawGoals(t, request);
  const auto by_time = [](const auto& a, const auto& b) { return a.at_us < b.at_us; };
  std::stable_sort(schedule.requests.begin(), schedule.requests.end(), by_time);
  std::stable_sort(schedule.faults.begin(), schedule.faults.end(), by_time);
  return schedule;
}

int64_t LastsUs(const Fault& fault, const Topology& topology) {
  if (fault.kind != FaultKind::kDrain) return fault.lasts_us;
  return fault.lasts_us + std::max<int64_t>(600'000, topology.drain_us + 100'000);
}

int64_t LeastWindowSlots(const Topology& t) {
  return (t.window_tokens - 1 + t.block_tokens - 1) / t.block_tokens + 2;
}

}  // namespace tandem::sim
