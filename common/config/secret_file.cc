#include "common/config/secret_file.h"

#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tandem::config {

absl::StatusOr<std::string> ReadSecretFile(absl::string_view flag, const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(flag, " ", path, ": cannot be read"));
  std::string secret((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  secret = std::string(absl::StripAsciiWhitespace(secret));
  if (secret.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": is empty"));
  }
  return secret;
}

}  // namespace tandem::config
