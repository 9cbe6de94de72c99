// The address of a UCX transport, in bytes. A node publishes it at registration; HELLO and WELCOME
// messages carry it with the address of a shared-memory worker added. A tag keyed with the fleet's
// secret keeps damaged and foreign addresses away from UCX, which trusts what it unpacks.
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::transfer {

struct UcxAddress {
  uint64_t origin = 0;  // drawn by the transport at its start
  // Whether the transport agrees to carry frames over TCP, and over shared memory.
  bool takes_tcp = false, takes_shm = false;
  std::string host;
  std::string worker_address;
  // In greetings: the shared-memory worker that only the greeted peer writes to; empty: none.
  std::string shm_address;

  std::string Serialize(absl::string_view fleet_secret) const;
  // kInvalidArgument for anything Serialize() did not write with this secret.
  static absl::StatusOr<UcxAddress> Parse(absl::string_view bytes, absl::string_view fleet_secret);
};

}  // namespace tandem::transfer
