// Checks that no token is lost, repeated, changed or reordered, and that each stream ends exactly
// once: compares what one client receives with the oracle, token by token. A client that asks again
// (its router died) starts at the first token and must receive the same tokens.
// Thread safety: none; the simulation's thread. Owner: SimClients.
#pragma once

#include <string>
#include <utility>

#include "sim/world/oracle.h"
#include "sim/world/violations.h"

namespace tandem::sim {

class StreamChecker {
 public:
  StreamChecker(RunLog& log, std::string request_id, OracleAnswer oracle)
      : log_(log), id_(std::move(request_id)), oracle_(std::move(oracle)) {}

  // The client asks, the first time or again.
  void OnAsked() {
    next_ = 0;
    ended_ = false;
  }
  void OnToken(int32_t index, TokenId token);
  // The stream's regular end. `given_up`: the client gives up an earlier request with this id, so
  // an abort is that one's. No other abort is allowed.
  void OnDone(request::FinishReason reason, int32_t output_tokens_reported, bool given_up);
  // Of the request as a whole; other sequences of it may have ended before.
  void OnFailed(const absl::Status& status);

  int32_t received() const { return next_; }

 private:
  void Violate(std::string what) { log_.Violate("stream", absl::StrCat(id_, ": ", what)); }

  RunLog& log_;
  const std::string id_;
  const OracleAnswer oracle_;
  int32_t next_ = 0;
  bool ended_ = false;
};

}  // namespace tandem::sim
