// One prefill core and one decode core driven by a small router over a fake KV plane with hash
// engines: every token a client gets is compared with the oracle's, every event is followed by a
// check that blocks are conserved. Faults come at the rates a Scenario names. Thread safety: none.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "common/rpc/convert.h"
#include "decode_node/decode_core.h"
#include "prefill_node/prefill_core.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/node/fake_kv_plane.h"

namespace tandem::node {

inline const RouterKey kFirstRouter(1);

struct Scenario {
  int64_t prefill_blocks = 128, decode_blocks = 128;
  int64_t max_batch_tokens = 48;
  int32_t max_sequences = 8;
  int prompt_tokens_max = 150, output_tokens_max = 40;
  int clients = 40;
  int lateness = 3;  // a transfer step happens with probability 1 in this
  // One fault of a kind in this many rounds; 0 = never.
  int abort_every = 0, lose_export_every = 0, lose_lease_every = 0, fail_step_every = 0;
  int lose_router_every = 0;
};

struct Client {
  v1::Leg leg;
  v1::SequenceSpec sequence;
  std::vector<TokenId> prompt, expected, received;
  request::FinishReason reason = request::FinishReason::kNone;
  enum { kQueued, kRunning, kDone, kAborted } state = kQueued;
  uint64_t lease = 0;
  uint32_t epoch = 0;
  int32_t first_ordinal = 0;
};

class Cluster {
 public:
  Cluster(const Scenario& scenario, uint64_t seed) : scenario_(scenario), random_(seed) {
    options_.eos_every = 50;
    options_.context_tokens = 256;
    prefill_engine_ = *engine::NewHashEngine(options_);
    decode_engine_ = *engine::NewHashEngine(options_);
    EXPECT_OK(prefill_engine_->AllocateKv(scenario.prefill_blocks));
    EXPECT_OK(decode_engine_->AllocateKv(scenario.decode_blocks));
    SchedulerOptions node{.spec = prefill_engine_->spec(),
                          .num_blocks = scenario.prefill_blocks,
                          .max_batch_tokens = scenario.max_batch_tokens,
                          .max_sequences = scenario.max_sequences};
    prefill_resources_ = std::make_unique<NodeResources>(node);
    prefill_ = std::make_unique<prefill_node::PrefillCore>(*prefill_resources_);
    node.num_blocks = scenario.decode_blocks;
    decode_resources_ = std::make_unique<NodeResources>(node);
    decode_ = std::make_unique<decode_node::DecodeCore>(*decode_resources_);
    plane_ =
        std::make_unique<FakeKvPlane>(prefill_engine_->arena(), decode_engine_->arena(), random_);
    for (int i = 0; i < scenario.clients; ++i) clients_.push_back(NewClient(i));
  }

  // Runs until every client has its answer; then lets everything end.
  void Run() {
    for (int round = 0; open_clients() > 0; ++round) {
      ASSERT_LT(round, 200000) << "no progress: " << open_clients() << " clients open";
      StartSomeClient();
      Round(/*faults=*/true);
      if (::testing::Test::HasFailure()) return;
    }
    for (int round = 0; round < 2000 && !(prefill_->idle() && decode_->idle()); ++round) {
      Round(/*faults=*/false);
    }
    ExpectBaseline();
  }

  NodeCore& prefill() { return *prefill_; }
  NodeCore& decode() { return *decode_; }
  const NodeResources& prefill_resources() const { return *prefill_resources_; }
  const NodeResources& decode_resources() const { return *decode_resources_; }
  std::vector<Client>& clients() { return clients_; }
  int drained_refusals() const { return drained_refusals_; }
  int64_t bytes_copied() const { return plane_->bytes_copied; }
  int64_t blocks_verified() const { return plane_->blocks_verified; }
  // Drains the decode node once this many clients are done.
  int drain_after = -1;

 private:
  Client NewClient(int number) {
    Client c;
    // Prompts begin with one of three stems cut anywhere, so that prefixes are shared.
    const int stem = static_cast<int>(random_() % 3);
    const int shared = static_cast<int>(random_() % scenario_.prompt_tokens_max);
    const int size = 1 + static_cast<int>(random_() % scenario_.prompt_tokens_max);
    for (int i = 0; i < size; ++i) {
      c.prompt.push_back(i < shared ? (stem * 71 + i * 13) % 250
                                    : static_cast<TokenId>(random_() % 259));
    }
    request::SamplingParams sampling;
    sampling.temperature = random_() % 2 == 0 ? 0.0 : 0.8;
    sampling.seed = random_();
    request::StopParams stop;
    stop.max_tokens = 1 + static_cast<int>(random_() % scenario_.output_tokens_max);
    c.leg.set_request_id(absl::StrCat("request-", number));
    c.leg.set_attempt(0);
    *c.sequence.mutable_sampling() = rpc::ToWire(sampling);
    *c.sequence.mutable_stop() = rpc::ToWire(stop);
    c.sequence.add_eos_token_ids(258);
    if (random_() % 4 == 0) c.sequence.set_cache_salt("tenant");
    std::vector<TokenId> all = c.prompt;
    while (c.reason == request::FinishReason::kNone) {
      const TokenId token = engine::HashEngineNextToken(options_, all, sampling, 0);
      all.push_back(token);
      c.expected.push_back(token);
      c.reason = request::CheckStop(stop, {258}, token, static_cast<int64_t>(c.expected.size()));
      if (c.reason == request::FinishReason::kNone &&
          static_cast<int64_t>(all.size()) == options_.context_tokens) {
        c.reason = request::FinishReason::kLength;
      }
    }
    return c;
  }

  int open_clients() const {
    int open = 0;
    for (const Client& c : clients_)
      open += c.state == Client::kQueued || c.state == Client::kRunning;
    return open;
  }
  bool Chance(int one_in) { return one_in > 0 && random_() % one_in == 0; }

  // ---- the router

  void StartSomeClient() {
    for (Client& c : clients_) {
      if (c.state != Client::kQueued || !Chance(4)) continue;
      if (c.received.size() == c.expected.size()) {
        // The last token had come before its leg failed: nothing is left to run. Its other leg may
        // still hold a lease.
        AbortBoth(c.leg);
        c.state = Client::kDone;
        continue;
      }
      c.state = Client::kRunning;
      c.leg.set_attempt(c.leg.attempt() + 1);
      c.lease = 0;
      v1::NodeCommand command;
      v1::StartDecode& run = *command.mutable_start_decode();
      *run.mutable_leg() = c.leg;
      c.sequence.mutable_prompt()->Assign(c.prompt.begin(), c.prompt.end());
      for (const TokenId token : c.received) c.sequence.add_prompt(token);
      c.sequence.set_delivered_tokens(static_cast<int32_t>(c.received.size()));
      *run.mutable_sequence() = c.sequence;
      run.set_local_prefill_tokens_max(Chance(5) ? -1 : 20);
      run.set_deadline_s(60);
      return Command(*decode_, command);
    }
  }

  void SendPrefill(Client& c) {
    v1::NodeCommand command;
    v1::Prefill& prefill = *command.mutable_prefill();
    *prefill.mutable_leg() = c.leg;
    *prefill.mutable_sequence() = c.sequence;
    prefill.set_lease_id(c.lease);
    prefill.set_epoch(c.epoch);
    prefill.set_first_ordinal(c.first_ordinal);
    prefill.set_deadline_s(60);
    Command(*prefill_, command);
  }

  // The sender is at fault: the same lease, the next epoch.
  void Replace(Client& c) {
    ++c.epoch;
    v1::NodeCommand command;
    v1::NewEpoch& epoch = *command.mutable_new_epoch();
    *epoch.mutable_leg() = c.leg;
    epoch.set_lease_id(c.lease);
    epoch.set_epoch(c.epoch);
    epoch.set_local_prefill_tokens_max(Chance(5) ? -1 : 20);
    Command(*decode_, command);
  }

  void AbortBoth(const v1::Leg& leg) {
    v1::NodeCommand command;
    *command.mutable_abort()->mutable_leg() = leg;
    command.mutable_abort()->set_reason("test");
    Command(*decode_, command);
    Command(*prefill_, command);
    Command(Chance(2) ? static_cast<NodeCore&>(*decode_) : *prefill_, command);  // idempotent
  }

  void Command(NodeCore& core, const v1::NodeCommand& command) {
    core.OnCommand(router_, command, now_);
    Collect();
  }

  // Carries out what the cores want, until they want nothing more.
  void Collect() {
    if (collecting_) return;
    collecting_ = true;
    for (bool any = true; any;) {
      any = false;
      for (NodeResources* resources : {prefill_resources_.get(), decode_resources_.get()}) {
        const NodeActions actions = resources->TakeActions();
        any |= !actions.empty();
        for (const auto& command : actions.transfer) plane_->Handle(command);
        for (const auto& [router, event] : actions.events) {
          if (router == router_) OnEvent(event);
        }
        CheckConserved(*resources);
      }
    }
    collecting_ = false;
  }

  static void CheckConserved(const NodeResources& resources) {
    const v1::NodeLoad load = resources.load();
    ASSERT_EQ(
        load.blocks_free() + load.blocks_cached() + load.blocks_used() + load.blocks_quarantined(),
        load.blocks_total());
    const v1::NodeCounters counters = resources.counters();
    const v1::TokensBySource& sources = counters.prompt_tokens();
    ASSERT_EQ(sources.computed() + sources.received() + sources.cached(),
              counters.prompt_tokens_total());
  }

  // The client of a leg, unless the event is of an older attempt or no client listens any more.
  Client* Find(const v1::Leg& leg) {
    for (Client& c : clients_) {
      if (c.leg.request_id() == leg.request_id()) {
        return c.leg.attempt() == leg.attempt() && c.state == Client::kRunning ? &c : nullptr;
      }
    }
    ADD_FAILURE() << "event of an unknown leg " << leg.request_id();
    return nullptr;
  }

  void OnToken(Client& c, const v1::GeneratedToken& token) {
    ASSERT_LT(token.index(), static_cast<int32_t>(c.expected.size())) << c.leg.request_id();
    ASSERT_EQ(token.token_id(), c.expected[token.index()])
        << c.leg.request_id() << " token " << token.index();
    ASSERT_LE(token.index(), static_cast<int32_t>(c.received.size())) << "a token was skipped";
    if (token.index() == static_cast<int32_t>(c.received.size())) {
      c.received.push_back(token.token_id());
    }
  }

  void OnEvent(const v1::NodeEvent& event) {
    if (event.has_reserved()) {
      Client* c = Find(event.reserved().leg());
      if (c == nullptr || event.reserved().computes_locally()) return;
      c->lease = event.reserved().lease_id();
      c->epoch = event.reserved().epoch();
      c->first_ordinal = (event.reserved().cached_tokens() + event.reserved().received_tokens()) /
                         options_.block_tokens;
      SendPrefill(*c);
    } else if (event.has_refused()) {
      OnRefused(event.refused());
    } else if (event.has_tokens()) {
      for (const auto& step : event.tokens().steps()) {
        Client* c = Find(step.leg());
        for (const auto& token : step.tokens()) {
          if (c != nullptr) OnToken(*c, token);
        }
      }
    } else if (event.has_installed()) {
      Client* c = Find(event.installed().leg());
      if (c != nullptr && event.installed().has_first_token()) {
        OnToken(*c, event.installed().first_token());
      }
    } else if (event.has_leg_finished()) {
      Client* c = Find(event.leg_finished().leg());
      if (c == nullptr) return;
      ASSERT_EQ(c->received, c->expected) << c->leg.request_id();
      ASSERT_EQ(event.leg_finished().reason(), rpc::ToWire(c->reason));
      c->state = Client::kDone;
    } else if (event.has_leg_failed()) {
      Client* c = Find(event.leg_failed().leg());
      if (c == nullptr) return;
      if (event.leg_failed().sender_side()) return Replace(*c);
      c->state = Client::kQueued;
    }
  }

  void OnRefused(const v1::Refused& refused) {
    Client* c = Find(refused.leg());
    if (c == nullptr) return;
    const absl::Status status = rpc::FromWire(refused.status());
    ASSERT_TRUE(absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) << status;
    if (absl::IsUnavailable(status)) {
      ++drained_refusals_;
      c->state = Client::kAborted;
      return;
    }
    AbortBoth(c->leg);  // the prefill node refused: give the lease up and come back later
    c->state = Client::kQueued;
  }

  // ---- rounds

  void Round(bool faults) {
    now_ += absl::Milliseconds(1);
    plane_->Progress(scenario_.lateness);
    Deliver();
    if (faults) PlantFaults();
    Step(*prefill_, *prefill_engine_, faults);
    Step(*decode_, *decode_engine_, faults);
    prefill_->OnTick(now_);
    decode_->OnTick(now_);
    Collect();
    int done = 0;
    for (const Client& c : clients_) done += c.state == Client::kDone;
    if (drain_after >= 0 && done >= drain_after) decode_->BeginDrain(now_, absl::Seconds(1));
  }

  void Deliver() {
    for (const auto& event : std::exchange(plane_->to_sender, {})) {
      prefill_->OnTransfer(event, now_);
      Collect();
    }
    for (const auto& event : std::exchange(plane_->to_receiver, {})) {
      decode_->OnTransfer(event, now_);
      Collect();
    }
  }

  void PlantFaults() {
    if (Chance(scenario_.abort_every)) {
      Client& c = clients_[random_() % clients_.size()];
      if (c.state == Client::kRunning || c.state == Client::kQueued) {
        c.state = Client::kAborted;
        AbortBoth(c.leg);
      }
    }
    if (Chance(scenario_.lose_export_every)) plane_->FailSomeExport();
    if (Chance(scenario_.lose_lease_every)) plane_->FailSomeLease();
    if (Chance(scenario_.lose_router_every)) {
      decode_->OnRouterLost(router_, now_);
      prefill_->OnRouterLost(router_, now_);
      router_ = RouterKey(router_.value() + 1);
      for (Client& c : clients_) {
        if (c.state == Client::kRunning) c.state = Client::kQueued;
      }
      Collect();
    }
  }

  void Step(NodeCore& core, engine::Engine& engine, bool faults) {
    const auto slices = core.PlanStep(now_);
    if (slices.empty()) return;
    int64_t rows = 0;
    for (const engine::SequenceSlice& slice : slices) rows += slice.num_new;
    ASSERT_LE(rows, scenario_.max_batch_tokens);
    if (faults) PlantFaults();  // commands and events may come while the step runs
    plane_->Progress(scenario_.lateness);
    Deliver();
    auto result = engine.Step(slices, [&](int layer) {
      core.OnLayerDone(layer);
      Collect();
    });
    ASSERT_OK(result.status());
    if (faults) PlantFaults();
    if (faults && Chance(scenario_.fail_step_every)) {
      result = absl::InternalError("planted");
      SpoilRows(slices, engine.arena());
    }
    core.OnStepDone(result, now_);
    Collect();
  }

  // A failed step may have written anything where its rows belong.
  void SpoilRows(absl::Span<const engine::SequenceSlice> slices, kv::BlockArena& arena) {
    const int64_t token_bytes = arena.layout().layer_block_bytes / options_.block_tokens;
    for (const engine::SequenceSlice& slice : slices) {
      for (int64_t row = slice.num_computed; row < slice.num_computed + slice.num_new; ++row) {
        for (int layer = 0; layer < options_.num_layers; ++layer) {
          const BlockId block = slice.blocks[row / options_.block_tokens];
          std::memset(arena.Block(layer, block).data() + row % options_.block_tokens * token_bytes,
                      0xee, token_bytes);
        }
      }
    }
  }

  void ExpectBaseline() {
    for (NodeCore* core : {&prefill(), &decode()}) {
      const NodeResources& resources =
          core == prefill_.get() ? *prefill_resources_ : *decode_resources_;
      EXPECT_TRUE(core->idle());
      const v1::NodeLoad load = core->load();
      EXPECT_EQ(load.blocks_used(), 0);
      EXPECT_EQ(load.blocks_quarantined(), 0);
      EXPECT_EQ(load.leases() + load.exports(), 0);
      EXPECT_EQ(load.sequences_running() + load.sequences_waiting(), 0);
      EXPECT_EQ(load.prefill_tokens_waiting(), 0);
      // The others are the ends of answers.
      const int64_t parts = load.blocks_cached() - std::ssize(resources.CachedBlocks());
      EXPECT_GE(parts, 0);
      EXPECT_LE(parts, static_cast<int64_t>(kv::BlockPool::kCachedPartsMax));
    }
    EXPECT_TRUE(plane_->idle());
    for (const Client& c : clients_) {
      if (c.state == Client::kDone) {
        EXPECT_EQ(c.received, c.expected);
      }
    }
  }

  const Scenario scenario_;
  engine::HashEngineOptions options_;
  std::mt19937_64 random_;
  std::unique_ptr<engine::Engine> prefill_engine_, decode_engine_;
  std::unique_ptr<NodeResources> prefill_resources_, decode_resources_;
  std::unique_ptr<NodeCore> prefill_, decode_;
  std::unique_ptr<FakeKvPlane> plane_;
  std::vector<Client> clients_;
  RouterKey router_ = kFirstRouter;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  bool collecting_ = false;
  int drained_refusals_ = 0;
};

}  // namespace tandem::node
