// Slows down clients that guess API keys. A source that sends wrong keys may send `tries` of them;
// then it must wait before its next key is looked up, and each further wrong key doubles the wait.
// A right key ends the count. A source is an IPv4 address or the /64 network of an IPv6 address,
// because one machine often owns a whole /64.
//
// Thread safety: any thread. Owner: the ApiKeys.
#pragma once

#include <cstdint>
#include <list>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::router {

class FailedKeys {
 public:
  // Sources that are remembered; beyond them the router forgets the one that failed longest ago.
  static constexpr size_t kSourcesMax = 4096;
  static constexpr absl::Duration kFirstWait = absl::Seconds(1);
  static constexpr absl::Duration kLongestWait = absl::Seconds(60);

  // `tries`: wrong keys in a row without a wait; 0 = no source ever waits.
  explicit FailedKeys(int64_t tries) : tries_(tries) {}

  // kResourceExhausted while `source` must wait, with the seconds as payload
  // rpc::kRetryAfterPayload.
  absl::Status MayTry(absl::string_view source, absl::Time now) const;
  void OnWrongKey(absl::string_view source, absl::Time now);
  void OnRightKey(absl::string_view source);

 private:
  struct Source {
    std::string name;
    int64_t failures = 0;
    absl::Time may_try_at = absl::InfinitePast();
  };
  using Sources = std::list<Source>;

  const int64_t tries_;
  mutable absl::Mutex mutex_;
  // The source that failed last comes first. Bound: kSourcesMax.
  Sources sources_ ABSL_GUARDED_BY(mutex_);
  // By name. Bound: kSourcesMax.
  absl::flat_hash_map<std::string, Sources::iterator> by_name_ ABSL_GUARDED_BY(mutex_);
};

// The source of a connection whose other end has the IP address `address`, such as "192.0.2.7" or
// "2001:db8::1". Other text is a source of its own.
std::string SourceOfAddress(const std::string& address);
// The same for gRPC's name of a peer: "ipv4:192.0.2.7:4711", "ipv6:%5B2001:db8::1%5D:4711".
std::string SourceOfGrpcPeer(absl::string_view peer);

}  // namespace tandem::router
