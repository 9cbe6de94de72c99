// How UCX transports reach each other, in bytes: the address that a node publishes, and, with a
// shm's address in it, the body of a greeting. The tag under the fleet's secret keeps damaged and
// foreign addresses away from UCX, which trusts what it unpacks. Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::transfer {

struct UcxAddress {
  uint64_t origin = 0;  // drawn by the transport at its start
  // What the transport agrees to carry frames over.
  bool takes_tcp = false, takes_shm = false;
  std::string host;
  std::string worker_address;
  // In greetings: the worker that only the greeted peer writes to; empty when there is none.
  std::string shm_address;

  std::string Serialize(absl::string_view fleet_secret) const;
  // kInvalidArgument for anything Serialize() did not write with this secret.
  static absl::StatusOr<UcxAddress> Parse(absl::string_view bytes, absl::string_view fleet_secret);
};

}  // namespace tandem::transfer
