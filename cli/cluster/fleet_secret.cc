#include "cli/cluster/fleet_secret.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/runtime/random.h"

namespace tandem::cli {
namespace {

constexpr size_t kSecretBytes = 32;

}  // namespace

absl::StatusOr<std::unique_ptr<FleetSecret>> FleetSecret::Create() {
  const std::string secret = absl::BytesToHexString(SecretBytes(kSecretBytes));
  const int fd = ::memfd_create("tandem-fleet-secret", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    return absl::UnavailableError(absl::StrCat("the fleet's secret: ", std::strerror(error)));
  }
  return std::unique_ptr<FleetSecret>(new FleetSecret(fd));
}

FleetSecret::FleetSecret(int fd) : fd_(fd), path_(absl::StrCat("/proc/", ::getpid(), "/fd/", fd)) {}
FleetSecret::~FleetSecret() { ::close(fd_); }

}  // namespace tandem::cli
