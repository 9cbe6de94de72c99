// One prefill and one decode node without an engine: they speak the fleet's protocol as real nodes
// do and make tokens up, one a sequence and step, so that what a router costs can be measured on a
// machine that has no room for engines beside it. The first token comes at once, and how long the
// nodes held its request until then is told (TakeHeld): the rest of a client's time to it is what
// the router, the wire and both ends' sockets take.
//
// Thread safety: Start and the destructor by the owner; TakeHeld from any thread; the rest is
// gRPC's and the step thread's.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/kv/block_hash.h"
#include "common/rpc/fleet_client.h"
#include "common/runtime/thread.h"
#include "tandem/v1/client.pb.h"

namespace tandem::bench {

struct ScriptedOptions {
  v1::GetModelResponse model;  // what the router serves
  absl::Duration step_time = absl::Milliseconds(2);
  // A sequence has its turn in every so manieth step: thousands of slow streams whose tokens do not
  // all come at once, as those of many nodes would not.
  uint64_t turns = 1;
  int64_t blocks = 4096;  // prompts' blocks that each node says it keeps
};

class ScriptedNodes final : public rpc::FleetClient::Listener {
 public:
  // Joins the router at `fleet_address`.
  static std::unique_ptr<ScriptedNodes> Start(const std::string& fleet_address,
                                              const ScriptedOptions& options);
  ScriptedNodes(const std::string& fleet_address, const ScriptedOptions& options);
  ~ScriptedNodes() override;

  // How long the nodes worked at the request so far: from the arrival of each command for it until
  // its answer was handed over. Forgets it. Zero for unknown ones.
  absl::Duration TakeHeld(const std::string& request_id);

  void OnConnected(rpc::FleetClient& client, uint64_t connection) override;
  void OnMessage(rpc::FleetClient& client, uint64_t connection, v1::RouterMessage message) override;
  void OnDisconnected(rpc::FleetClient& client, uint64_t connection,
                      const absl::Status& status) override;

 private:
  static constexpr int kBlockTokens = 32;

  struct Node {
    std::unique_ptr<rpc::FleetClient> client;
    uint64_t connection = 0;
    std::deque<kv::BlockHash> kept;  // in the order they were stored
    absl::flat_hash_map<kv::BlockHash, int> holds;
  };
  struct Running {
    v1::Leg leg;
    std::vector<kv::BlockHash> hashes;
    int32_t prompt_tokens = 0;
    int32_t next_index = 0, tokens_max = 0;
    bool generating = false;
  };

  Node& NodeOf(const rpc::FleetClient& client) {
    return &client == decode_.client.get() ? decode_ : prefill_;
  }
  void OnRun(const v1::StartDecode& run, v1::NodeMessage& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnPrefill(const v1::Prefill& prefill, v1::NodeMessage& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reports what `node` now keeps and no longer keeps.
  void Keep(Node& node, const std::vector<kv::BlockHash>& hashes, v1::NodeMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::GeneratedToken TokenAt(int32_t index) const;
  void Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunSteps();

  const ScriptedOptions options_;
  absl::Mutex mutex_;
  Node prefill_, decode_;
  absl::flat_hash_map<uint64_t, Running> running_ ABSL_GUARDED_BY(mutex_);  // by lease
  // Bound: the requests whose first token the client has not seen.
  absl::flat_hash_map<std::string, absl::Duration> held_ ABSL_GUARDED_BY(mutex_);
  uint64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;
  kv::BlockHasher hasher_ ABSL_GUARDED_BY(mutex_){kv::BlockKey()};
  uint64_t next_lease_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace tandem::bench
