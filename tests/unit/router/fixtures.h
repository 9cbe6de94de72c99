// Registrations and hashes that the router's tests share.
#pragma once

#include <string>
#include <vector>

#include "common/kv/block_hash.h"
#include "router/core/router_core.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

inline constexpr int kBlockTokens = 4;

inline ModelIdentity TestModel() {
  ModelIdentity model;
  model.name = "toy";
  model.fingerprint = "f00d";
  model.vocab_size = 1000;
  model.context_tokens = 400;
  return model;
}

inline v1::Registration TestRegistration(const std::string& id, v1::NodeRole role,
                                         uint64_t incarnation = 1) {
  v1::Registration registration;
  registration.set_node_id(id);
  registration.set_incarnation(incarnation);
  registration.set_role(role);
  registration.set_model_name("toy");
  registration.set_model_fingerprint("f00d");
  registration.set_numerics_id("n1");
  registration.set_context_tokens(400);
  registration.set_vocab_size(1000);
  registration.set_block_tokens(kBlockTokens);
  registration.set_num_blocks(100);
  registration.set_transfer_address("address of " + id);
  registration.set_host("host of " + id);
  registration.set_max_sequences(16);
  registration.set_block_names(kv::BlockKey().names());
  return registration;
}

// Makes placement choose the first of several equal nodes: in the order in which they joined.
class FirstOfEqual final : public Random {
 public:
  uint64_t Next() override { return 0; }
};

inline std::vector<TokenId> Tokens(int count, TokenId first = 1) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

inline std::vector<kv::BlockHash> HashesOf(const std::vector<TokenId>& tokens,
                                           const std::string& cache_salt = "") {
  kv::BlockHasher hasher{kv::BlockKey()};
  return hasher.Blocks(hasher.Salt("f00d", "n1", cache_salt), tokens, kBlockTokens);
}

}  // namespace tandem::router
