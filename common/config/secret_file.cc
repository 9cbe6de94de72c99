#include "common/config/secret_file.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/read_file.h"
#include "common/base/status_macros.h"

namespace tandem::config {
namespace {

constexpr size_t kSecretFileBytesMax = 64 << 10;

}  // namespace

absl::StatusOr<std::string> ReadSecretFile(absl::string_view flag, const std::string& path) {
  if (path.empty()) return std::string();
  ASSIGN_OR_RETURN(std::string secret, ReadFile(flag, path, kSecretFileBytesMax));
  secret = std::string(absl::StripAsciiWhitespace(secret));
  if (secret.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": ", path, " is empty, expected a secret"));
  }
  return secret;
}

}  // namespace tandem::config
