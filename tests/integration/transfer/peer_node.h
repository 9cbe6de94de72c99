// Drives `transfer_peer` (peer_main.cc), one node's KV plane as a process of its own, in tests that
// kill and stop such processes. Thread safety: none.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "tests/testing/child_process.h"

namespace tandem::transfer {

constexpr absl::Duration kPatience = absl::Seconds(40);

struct Node {
  Node(const std::string& transports, int layers, int64_t layer_block_bytes, int blocks,
       int incarnation_in)
      : incarnation(incarnation_in),
        process({std::string(TANDEM_BINARY_DIR) + "/tests/transfer_peer", transports,
                 absl::StrCat(layers), absl::StrCat(layer_block_bytes), absl::StrCat(blocks),
                 absl::StrCat(incarnation_in)}) {
    const std::string line = process.ReadLine("address ", kPatience);
    EXPECT_FALSE(line.empty());
    if (!line.empty()) address = line.substr(8);
  }
  std::string Wait(const std::string& prefix) { return process.ReadLine(prefix, kPatience); }
  // "check equal" when blocks hold the pattern of `seed`.
  std::string Check(int first, int count, int seed) {
    process.Write(absl::StrCat("check ", first, " ", count, " ", seed));
    return Wait("check ");
  }
  void Fill(int first, int count, int seed) {
    process.Write(absl::StrCat("fill ", first, " ", count, " ", seed));
    EXPECT_EQ(Wait("filled"), "filled");
  }

  int incarnation;
  std::string address;
  ::tandem::testing::ChildProcess process;
};

struct KvTransfer {
  int id = 1;
  int epoch = 1;
  int receiver_block = 0;
  int sender_block = 0;
  int count = 1;
  int deadline_ms = 30'000;
};

// Returns once the lease is open, as a router starts a sender only then.
inline void OpenLease(Node& receiver, const KvTransfer& h) {
  receiver.process.Write(absl::StrCat("lease ", h.id, " ", h.epoch, " ", h.receiver_block, " ",
                                      h.count, " ", h.deadline_ms));
  const absl::Time give_up = absl::Now() + kPatience;
  while (absl::Now() < give_up) {
    receiver.process.Write("counters");
    const std::vector<std::string> words = absl::StrSplit(receiver.Wait("counters "), ' ');
    if (words.size() == 5 && words[2] != "0") return;  // counters BYTES LEASES EXPORTS RECEIVES
  }
  ADD_FAILURE() << "lease " << h.id << " did not open";
}
inline void Export(Node& sender, const Node& receiver, const KvTransfer& h) {
  sender.process.Write(absl::StrCat("export ", h.id, " ", receiver.address, " ",
                                    receiver.incarnation, " ", h.id, " ", h.epoch, " ",
                                    h.sender_block, " ", h.count, " ", h.deadline_ms));
}

// Bytes that the node has verified since its start.
inline int64_t BytesReceived(Node& receiver) {
  receiver.process.Write("counters");
  const std::vector<std::string> words = absl::StrSplit(receiver.Wait("counters "), ' ');
  int64_t bytes = -1;
  EXPECT_TRUE(words.size() == 5 && absl::SimpleAtoi(words[1], &bytes));
  return bytes;
}

// Returns once the receiver has verified some bytes beyond `before`.
inline void AwaitData(Node& receiver, int64_t before = 0) {
  const absl::Time give_up = absl::Now() + kPatience;
  while (BytesReceived(receiver) <= before && absl::Now() < give_up) {
  }
  EXPECT_GT(BytesReceived(receiver), before) << "no data arrived";
}

// Returns once no lease, export or receive is open; counters follow their events a moment later.
inline bool AwaitIdle(Node& node) {
  const absl::Time give_up = absl::Now() + kPatience;
  while (absl::Now() < give_up) {
    node.process.Write("counters");
    if (absl::EndsWith(node.Wait("counters "), " 0 0 0")) return true;
  }
  return false;
}

// A short transfer may be over before its arena is mapped.
inline ::testing::Matcher<std::string> ExpectedTransport(const std::string& transports) {
  if (transports == "mapped") return ::testing::AnyOf("shm", "shm+mapped");
  return ::testing::Eq(transports);
}

// Transfers blocks again and again until they leave from a mapped arena.
inline void AwaitMapped(Node& sender, Node& receiver, int first_id) {
  const absl::Time give_up = absl::Now() + kPatience;
  for (int id = first_id; absl::Now() < give_up; ++id) {
    const KvTransfer kv_transfer{.id = id, .count = 1};
    OpenLease(receiver, kv_transfer);
    Export(sender, receiver, kv_transfer);
    const std::string installed = receiver.Wait(absl::StrCat("installed ", id, " "));
    ASSERT_NE(installed, "");
    ASSERT_NE(sender.Wait(absl::StrCat("done ", id, " ")), "");
    ASSERT_TRUE(AwaitIdle(receiver));  // so that the counters speak of the next lease only
    if (absl::StrContains(installed, " shm+mapped ")) return;
  }
  ADD_FAILURE() << "no arena was mapped";
}

}  // namespace tandem::transfer
