#include "cli/cluster/fleet_secret.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/runtime/random.h"

namespace tandem::cli {
namespace {

constexpr size_t kSecretBytes = 32;

std::string NewSecret() { return absl::BytesToHexString(SecretBytes(kSecretBytes)); }

absl::Status WriteSecret(int fd, const std::string& path) {
  const std::string secret = NewSecret() + "\n";
  if (::write(fd, secret.data(), secret.size()) == static_cast<ssize_t>(secret.size()) &&
      ::fsync(fd) == 0)
    return absl::OkStatus();
  return absl::ErrnoToStatus(errno, path);
}

// Makes the file `path`, unless it is there. It gets its name only when it is whole on the disk, so
// no start finds a part of it, and none replaces what another has read.
absl::Status MakeFile(const std::string& path) {
  std::string unnamed = path + ".XXXXXX";
  const int fd = ::mkostemp(unnamed.data(), O_CLOEXEC);  // its owner's only
  if (fd < 0) return absl::ErrnoToStatus(errno, unnamed);
  absl::Status made = WriteSecret(fd, unnamed);
  ::close(fd);
  if (made.ok() && ::link(unnamed.c_str(), path.c_str()) != 0 && errno != EEXIST)
    made = absl::ErrnoToStatus(errno, path);
  ::unlink(unnamed.c_str());
  return made;
}

bool IsEmptyFile(const std::string& path) {
  struct stat found = {};
  return ::stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) && found.st_size == 0;
}

// Earlier releases left an empty file when they died between making and writing it.
absl::Status RemoveEmptyFile(const std::string& folder, const std::string& path) {
  if (!IsEmptyFile(path)) return absl::OkStatus();
  // Under a lock: a start beside this one may have put the secret there since.
  const int lock = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool removed = lock >= 0 && ::flock(lock, LOCK_EX) == 0 &&
                       (!IsEmptyFile(path) || ::unlink(path.c_str()) == 0);
  const int error = errno;
  if (lock >= 0) ::close(lock);
  return removed ? absl::OkStatus() : absl::ErrnoToStatus(error, path + " is empty");
}

}  // namespace

absl::StatusOr<std::unique_ptr<FleetSecret>> FleetSecret::Create() {
  const std::string secret = NewSecret();
  const int fd = ::memfd_create("tandem-fleet-secret", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    return absl::UnavailableError(absl::StrCat("the fleet's secret: ", std::strerror(error)));
  }
  std::string path = absl::StrCat("/proc/", ::getpid(), "/fd/", fd);
  return std::unique_ptr<FleetSecret>(new FleetSecret(fd, std::move(path)));
}

absl::StatusOr<std::unique_ptr<FleetSecret>> FleetSecret::KeepIn(const std::string& folder) {
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    return absl::ErrnoToStatus(errno, folder);
  std::string path = absl::StrCat(folder, "/fleet-secret");
  RETURN_IF_ERROR(RemoveEmptyFile(folder, path));
  if (::access(path.c_str(), F_OK) != 0) RETURN_IF_ERROR(MakeFile(path));
  return std::unique_ptr<FleetSecret>(new FleetSecret(-1, std::move(path)));
}

FleetSecret::FleetSecret(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
FleetSecret::~FleetSecret() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace tandem::cli
