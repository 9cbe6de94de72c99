// A fleet whose nodes have said what their steps cost, and placement by cost in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/placement/pair_placement.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {

inline const absl::Time kNow = absl::FromUnixSeconds(1000);
inline constexpr double kRowUs = 1000;  // of a prompt

inline cost::StepProfile Profile() {
  return {.step_us = 500,
          .prompt_row_us = kRowUs,
          .generated_row_us = 100,
          .sampled_row_us = 0,
          .relative_error = 0.01,
          .median_relative_error = 0.01,
          .samples = 100};
}

class CostPlacementTest : public ::testing::Test {
 protected:
  CostPlacementTest() { fleet_.SetNow(kNow); }

  Node& Add(uint64_t key, const std::string& id, v1::NodeRole role) {
    v1::Registration registration = TestRegistration(id, role);
    registration.set_kv_bytes_per_block(1000 * kBlockTokens);
    Node& node = fleet_.Join(NodeKey(key), registration, kNow);
    index_.AddNode(node.slot, node.group(), 1000);
    fleet_.OnStepCost(node, Profile());
    return node;
  }
  Node& Prefill(int i) { return Add(100 + i, absl::StrCat("p", i), v1::NODE_ROLE_PREFILL); }
  Node& Decode(int i) { return Add(1 + i, absl::StrCat("d", i), v1::NODE_ROLE_DECODE); }
  // All prefill nodes reach the decode node quickly.
  void MeasureToDecode(const Node& decode) {
    for (const Node* node : fleet_.nodes())
      if (node->role == v1::NODE_ROLE_PREFILL) Measure(*node, decode, 1000);
  }
  // A node has the first five blocks of `held` in memory, and the others in its storage.
  void StorePartlyOnDisk(Node& node, absl::Span<const kv::BlockHash> held) {
    index_.Store(node.slot, held.first(5));
    index_.Store(node.slot, held.subspan(5), Tier::kDisk);
    v1::NodeLoad load = node.load;
    load.set_blocks_stored(static_cast<int64_t>(held.size()) - 5);
    fleet_.OnLoad(node, load);
  }
  // Transfers that moved bytes at this rate.
  void Measure(const Node& from, const Node& to, double bytes_per_us) {
    for (int i = 0; i < 40; ++i) {
      const int64_t bytes = 10'000 * (1 + i % 8);
      v1::Installed installed;
      installed.set_kv_bytes_received(bytes);
      installed.set_kv_receive_ms(static_cast<double>(bytes) / bytes_per_us / 1e3);
      fleet_.KvTransferDone(from.key, to.key, installed);
    }
  }

  std::optional<PlacementFailure> Place(int prompt, Random& random,
                                        absl::Duration within = absl::InfiniteDuration()) {
    const auto tokens = Tokens(prompt);
    hashes_ = HashesOf(tokens);
    PlacementRequest request{prompt, prompt + 20, hashes_, fleet_.now(), &failed_};
    request.first_token_within = within;
    request.urgency = urgency_;
    return PairPlacement({.local_prefill_tokens_max = local_prefill_tokens_,
                          .fetch_tokens_min = 8,
                          .policy = PlacementPolicy::kCost,
                          .explains = true,
                          .prefill_wait_max = prefill_wait_max_},
                         fleet_, index_, random)
        .Place(request, placement_);
  }
  std::optional<PlacementFailure> Place(int prompt) { return Place(prompt, random_); }
  // A figure that `tandem why` shows of a node.
  double Shown(const std::string& node, const std::string& name) const {
    for (const auto* list :
         {&placement_.decision->decode_nodes(), &placement_.decision->prefill_nodes()})
      for (const v1::PlacementCandidate& candidate : *list)
        if (candidate.node_id() == node)
          for (const v1::PlacementScore& score : candidate.scores())
            if (score.name() == name) return score.score();
    ADD_FAILURE() << "nothing shown of " << node << ", " << name;
    return -1;
  }

  FirstOfEqual random_;
  Fleet fleet_{TestModel(), {2000}, random_};
  PrefixIndex index_{{.entries_max = 100000}};
  std::vector<kv::BlockHash> hashes_;
  std::vector<std::pair<NodeKey, absl::Time>> failed_;
  absl::Duration prefill_wait_max_;
  request::Urgency urgency_;
  int32_t local_prefill_tokens_ = 8;
  Placement placement_;
};

}  // namespace tandem::router
