#include "cli/pull/file_hash.h"

#include <openssl/evp.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tandem::cli {
namespace {

class Digest {
 public:
  explicit Digest(const EVP_MD* kind) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context_.get(), kind, nullptr);
  }
  void Add(absl::string_view bytes) {
    EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
  }
  std::string Hex() {
    unsigned char value[EVP_MAX_MD_SIZE];
    unsigned int bytes = 0;
    EVP_DigestFinal_ex(context_.get(), value, &bytes);
    return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(value), bytes));
  }

 private:
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

absl::StatusOr<FileHashes> HashFile(const std::string& path, const std::function<bool()>& go_on) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  Digest sha256(EVP_sha256()), git(EVP_sha1());
  const std::string header = absl::StrCat("blob ", size);
  git.Add(absl::string_view(header.c_str(), header.size() + 1));  // with the zero
  std::vector<char> buffer(1 << 20);
  while (file) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    const absl::string_view bytes(buffer.data(), static_cast<size_t>(file.gcount()));
    sha256.Add(bytes);
    git.Add(bytes);
    if (!go_on()) return absl::CancelledError("interrupted");
  }
  if (!file.eof()) return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  return FileHashes{.sha256 = sha256.Hex(), .git_blob = git.Hex()};
}

}  // namespace tandem::cli
