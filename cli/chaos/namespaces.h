// Network namespaces for the processes of a chaos run, joined by a PacketSwitch. They have no
// names: the kernel removes them with the last process or descriptor in them, whatever ends this
// program. Thread safety: by its owner.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/chaos/packet_switch.h"

namespace tandem::cli {

class Namespaces {
 public:
  // Moves this process into a namespace of its own, port 0, with its own /dev/shm of `shm_bytes`,
  // and makes `count` more. kUnavailable says what this process may not do; it is then still in the
  // namespace it was in. REQUIRES: no other thread runs.
  static absl::StatusOr<std::unique_ptr<Namespaces>> Create(int count, int64_t shm_bytes,
                                                            uint64_t seed);
  virtual ~Namespaces() = default;

  // Of port `port`, on the network between all ports.
  virtual std::string AddressOf(int port) const = 0;
  // For ChildProcess. Of port `port` >= 1.
  virtual int DescriptorOf(int port) const = 0;
  virtual PacketSwitch& packets() = 0;
  // Leaves no byte free in /dev/shm, and gives it back.
  virtual absl::Status FillDisk() = 0;
  virtual void EmptyDisk() = 0;
};

}  // namespace tandem::cli
