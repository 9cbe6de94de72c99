#include "cli/cluster/fleet_secret.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/runtime/random.h"

namespace tandem::cli {
namespace {

constexpr size_t kSecretBytes = 32;

std::string NewSecret() { return absl::BytesToHexString(SecretBytes(kSecretBytes)); }

absl::Status WriteSecret(int fd, const std::string& path) {
  const std::string secret = NewSecret() + "\n";
  if (::write(fd, secret.data(), secret.size()) == static_cast<ssize_t>(secret.size()))
    return absl::OkStatus();
  return absl::ErrnoToStatus(errno, path);
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
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (fd < 0 && errno != EEXIST) return absl::ErrnoToStatus(errno, path);
  if (fd >= 0) {
    const absl::Status written = WriteSecret(fd, path);
    ::close(fd);
    if (!written.ok()) {
      ::unlink(path.c_str());
      return written;
    }
  }
  return std::unique_ptr<FleetSecret>(new FleetSecret(-1, std::move(path)));
}

FleetSecret::FleetSecret(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
FleetSecret::~FleetSecret() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace tandem::cli
