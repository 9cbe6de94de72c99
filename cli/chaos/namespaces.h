// Network namespaces for the processes of a chaos run, connected by a PacketSwitch. The namespaces
// have no names, so the kernel removes them together with the last process or descriptor in them,
// however this program ends. Thread safety: one thread at a time. Owner: the chaos command.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/chaos/packet_switch.h"

namespace tandem::cli {

class Namespaces {
 public:
  // Moves this process into a namespace of its own, port 0, with its own /dev/shm of `shm_bytes`,
  // and creates `count` more. kUnavailable says which privilege is missing; the process is then
  // still in its old namespace. REQUIRES: no other thread runs.
  static absl::StatusOr<std::unique_ptr<Namespaces>> Create(int count, int64_t shm_bytes,
                                                            uint64_t seed);
  virtual ~Namespaces() = default;

  // The IPv4 address of port `port` on the network between all ports.
  virtual std::string AddressOf(int port) const = 0;
  // The namespace's descriptor, for ChildProcess. REQUIRES: `port` >= 1.
  virtual int DescriptorOf(int port) const = 0;
  virtual PacketSwitch& packets() = 0;
  // Fills /dev/shm; frees it again.
  virtual absl::Status FillDisk() = 0;
  virtual void EmptyDisk() = 0;
};

}  // namespace tandem::cli
