// A router core whose nodes ask for loans and answer, message by message. Thread safety: none.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "common/rpc/convert.h"
#include "router/core/loan_broker.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {

inline constexpr int kLendable = 40;

class LoanBrokerTest : public ::testing::Test {
 protected:
  static v1::Registration Lends(const std::string& id, const std::string& host = "a") {
    v1::Registration registration = TestRegistration(id, v1::NODE_ROLE_DECODE);
    registration.set_host(host);
    registration.set_lending_address("unix:" + id + " tcp:" + id);
    registration.set_lend_blocks_max(kLendable);
    registration.set_lending_unit_tokens(256);
    return registration;
  }
  // Registrations of nodes 1, 2, ...; node 1 is the debtor.
  void Join(std::initializer_list<v1::Registration> registrations) {
    for (const v1::Registration& registration : registrations)
      ASSERT_OK(harness_.Join(++nodes_, registration));
  }
  static std::vector<kv::BlockHash> Hashes(int count) {
    kv::BlockHasher hasher{kv::BlockKey()};
    return hasher.Blocks(hasher.Salt("m", "n", ""), Tokens(count * 16), 16);
  }
  void Want(uint64_t loan, std::vector<std::string> avoid = {}) {
    v1::NodeEvent event;
    v1::LoanWanted& wanted = *event.mutable_loan_wanted();
    wanted.set_loan(loan);
    wanted.set_units(1);
    wanted.set_hashes(kv::PackHashes(Hashes(16)));
    for (const std::string& node : avoid) wanted.add_avoid_node_ids(node);
    harness_.Say(1, {event});
  }
  // The node's answer to LendBlocks.
  void Offer(uint64_t node, uint64_t loan, const absl::Status& status) {
    v1::NodeEvent event;
    v1::LoanOffered& offered = *event.mutable_loan_offered();
    offered.set_debtor_node_id("d1");
    offered.set_debtor_incarnation(Lends("d1").incarnation());
    offered.set_loan(loan);
    *offered.mutable_status() = rpc::ToWire(status);
    offered.set_lease_id(77);
    offered.set_epoch(1);
    offered.set_held_blocks(3);
    offered.set_units(1);
    harness_.Say(node, {event});
  }
  // The node that LendBlocks went to; 0 = none.
  uint64_t Asked() {
    for (uint64_t node = 1; node <= nodes_; ++node) {
      if (harness_.Quiet(node)) continue;
      if (!harness_.commands()[node].front().has_lend_blocks()) continue;
      harness_.Next(node);
      return node;
    }
    return 0;
  }
  v1::LoanAnswer Answer() {
    const v1::NodeCommand command = harness_.Next(1);
    EXPECT_TRUE(command.has_loan_answer()) << command.ShortDebugString();
    return command.loan_answer();
  }
  void Report(uint64_t node, const std::function<void(v1::NodeLoad&)>& change) {
    v1::NodeMessage message;
    v1::NodeLoad& load = *message.mutable_load();
    load.set_blocks_total(100);
    load.set_blocks_free(100);
    change(load);
    harness_.SayMessage(node, message);
  }

  CoreHarness harness_;
  uint64_t nodes_ = 0;
};

}  // namespace tandem::router
