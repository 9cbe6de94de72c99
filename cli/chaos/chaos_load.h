// The clients of a chaos run. Each client sends one request after another. When its router fails or
// is silent, it sends the request again, with the same request id and from the last token that it
// received. Thread safety: one thread at a time; the clients' threads are internal.
// Owner: the chaos command.
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
    // By request. Empty for Record: then nothing is compared, cancelled or salted.
    std::vector<std::vector<SequenceAnswer>> expected;
    int clients = 8;
    uint64_t seed = 0;
    int64_t pool_tokens = 0;  // what one node holds
    // A client asks another router after this much silence, and gives a request up after this time.
    absl::Duration patience = absl::Seconds(4), give_up_after = absl::Seconds(60);
  };

  // Sends each request once. Returns the answers and their records, by request. Cuts calls off when
  // `stopped` returns true. Without faults a call that is asked again counts as failed, so a client
  // waits through the silence of a busy machine, for half of give_up_after.
  struct Recording {
    std::vector<std::vector<SequenceAnswer>> answers;
    std::vector<ChaosRequest> records;
  };
  static Recording Record(const Options& options, const std::function<bool()>& stopped);

  // Starts the clients; they send requests until the load ends.
  static std::unique_ptr<ChaosLoad> Start(const Options& options, absl::Time begin);
  // Ends the load and cuts calls off.
  virtual ~ChaosLoad() = default;
  // Sends no new requests. Returns whether all running requests ended within `timeout`. Waits no
  // longer when `stopped`, called about every 100 ms, returns true.
  virtual bool Finish(absl::Duration timeout, const std::function<bool()>& stopped) = 0;
  virtual std::vector<ChaosRequest> Records() const = 0;
};

}  // namespace tandem::cli
