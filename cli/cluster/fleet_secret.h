// A random secret for the fleet that one command runs. This user's processes can read it through
// path() while the command runs. It is in no folder, unless the fleet keeps KV blocks on disk:
// their names are keyed with the secret, so that the next run finds them only with the same one.
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
  // The secret in `folder`/fleet-secret, which this makes, with the folder, if they are not there,
  // or if the file is empty. Starts at the same time get the same. Errors: the system's, naming the
  // path.
  static absl::StatusOr<std::unique_ptr<FleetSecret>> KeepIn(const std::string& folder);
  ~FleetSecret();
  FleetSecret(const FleetSecret&) = delete;
  FleetSecret& operator=(const FleetSecret&) = delete;

  // For --fleet-secret-file, of this process and of others.
  const std::string& path() const { return path_; }

 private:
  FleetSecret(int fd, std::string path);
  const int fd_;  // -1: the secret is a file
  const std::string path_;
};

}  // namespace tandem::cli
