// Transports within one process, for single-process clusters and tests; they find each other by
// address. Payloads are copied once, from the sender's blocks to the receiver's, in the receiver's
// Progress(). Thread safety: each transport as KvTransport; transports of one network may be used
// by different threads.
#pragma once

#include <memory>

#include "common/transfer/kv_transport.h"

namespace tandem::transfer {

// Where the transports of one process meet. Outlives them all.
class InProcessNetwork {
 public:
  InProcessNetwork();
  ~InProcessNetwork();
  InProcessNetwork(const InProcessNetwork&) = delete;
  InProcessNetwork& operator=(const InProcessNetwork&) = delete;

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// `network` outlives the transport.
std::unique_ptr<KvTransport> NewInProcessTransport(InProcessNetwork& network);

}  // namespace tandem::transfer
