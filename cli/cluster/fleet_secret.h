// A random secret for the fleet that one command runs. This user's processes can read it through
// path() while the command runs; it is in no folder.
//
// Thread safety: immutable after Create. Owner: the command.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::cli {

class FleetSecret {
 public:
  static absl::StatusOr<std::unique_ptr<FleetSecret>> Create();
  ~FleetSecret();
  FleetSecret(const FleetSecret&) = delete;
  FleetSecret& operator=(const FleetSecret&) = delete;

  // For --fleet-secret-file, of this process and of others.
  const std::string& path() const { return path_; }

 private:
  explicit FleetSecret(int fd);
  const int fd_;
  const std::string path_;
};

}  // namespace tandem::cli
