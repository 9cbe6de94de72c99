// The network between processes in network namespaces of their own. It carries IPv4 packets between
// their TUN devices, and cuts, slows or loses packets for each direction of each pair (a link). It
// needs no traffic control in the kernel, and a seed decides which packets are lost.
// Thread safety: LinkTable none; PacketSwitch all methods from any thread. Owner: Namespaces.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/runtime/random.h"

namespace tandem::cli {

struct LinkCondition {
  bool cut = false;
  int64_t lost_of_thousand = 0;
  int64_t bytes_per_second = 0;  // 0 = as fast as packets come
};

// Decides for each packet whether and when it arrives.
class LinkTable {
 public:
  // A slow link queues at most what it carries in this time, and drops the rest.
  static constexpr absl::Duration kHeldMax = absl::Milliseconds(300);

  LinkTable(int ports, uint64_t seed);
  // REQUIRES for all below: ports in range.
  void Set(int from, int to, const LinkCondition& condition);
  // When a packet of `bytes` arrives; nullopt when it is lost.
  std::optional<absl::Time> Arrival(int from, int to, int64_t bytes, absl::Time now);

 private:
  struct Link {
    LinkCondition condition;
    absl::Time free_at = absl::InfinitePast();  // when a slow link has sent all it holds
  };
  Link& At(int from, int to) { return links_[static_cast<size_t>(from * ports_ + to)]; }

  const int ports_;
  const std::unique_ptr<Random> random_;
  std::vector<Link> links_;
};

class PacketSwitch {
 public:
  // Starts the switch's thread. `devices`: non-blocking descriptors, borrowed, one packet for each
  // read or write. Port i receives the packets for the address whose last byte is i + 1.
  static std::unique_ptr<PacketSwitch> Start(std::vector<int> devices, uint64_t seed);
  virtual ~PacketSwitch() = default;
  virtual void Set(int from, int to, const LinkCondition& condition) = 0;

  struct Counts {
    int64_t passed = 0, lost = 0;
  };
  virtual Counts counts() const = 0;
};

}  // namespace tandem::cli
