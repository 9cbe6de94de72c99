// The clients of a chaos run: each asks for one answer after the other, and asks again, by the same
// request id and from the token it has come to, when its router fails it or says nothing.
// Thread safety: by its owner; Take from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/chaos/chaos_report.h"
#include "cli/chaos/stream_check.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

class ChaosLoad {
 public:
  struct Options {
    std::vector<std::string> routers;  // host:port
    std::vector<v1::GenerateRequest> requests;
    // By request; empty while they are recorded: then nothing is compared, cancelled or salted.
    std::vector<std::vector<SequenceAnswer>> expected;
    int clients = 8;
    uint64_t seed = 0;
    // Silence after which a client asks elsewhere, and time after which it gives up.
    absl::Duration patience = absl::Seconds(4), give_up_after = absl::Seconds(60);
  };

  // Asks each request once, by any client; the answers by request, and what became of each. Calls
  // are cut off once `stopped` says so.
  struct Recording {
    std::vector<std::vector<SequenceAnswer>> answers;
    std::vector<ChaosRequest> records;
  };
  static Recording Record(const Options& options, const std::function<bool()>& stopped);

  // Clients ask until the load ends.
  static std::unique_ptr<ChaosLoad> Start(const Options& options, absl::Time begin);
  // Ends it, cutting calls off.
  virtual ~ChaosLoad() = default;
  // No new requests; returns whether all that run ended within `timeout`.
  virtual bool Finish(absl::Duration timeout) = 0;
  virtual std::vector<ChaosRequest> Records() const = 0;
};

}  // namespace tandem::cli
