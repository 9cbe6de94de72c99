#include "common/model/model_name.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tandem::model {
namespace {

constexpr absl::string_view kHub = "hf:", kHttps = "https://", kHttp = "http://";
constexpr size_t kPartBytesMax = 128;
constexpr size_t kUrlBytesMax = 200;

absl::Status Wrong(absl::string_view text, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat("model '", text, "': expected ", expected));
}

// Whether what follows "http://" leads to this machine, by whatever port.
bool IsOnLoopback(absl::string_view rest) {
  const absl::string_view authority = rest.substr(0, rest.find('/'));
  // A name and a password come before an '@', and the host behind it.
  if (absl::StrContains(authority, '@')) return false;
  const size_t end = absl::StartsWith(authority, "[")
                         ? authority.find(']') + 1
                         : std::min(authority.find(':'), authority.size());
  const std::string host(authority.substr(0, end));
  in_addr address;
  return host == "localhost" || host == "[::1]" ||
         (absl::StartsWith(host, "127.") && inet_pton(AF_INET, host.c_str(), &address) == 1);
}

}  // namespace

bool IsPlainFileName(absl::string_view name) {
  const auto plain = [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  };
  return !name.empty() && name.size() <= kPartBytesMax && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), plain);
}

bool LooksLikeModelName(absl::string_view text) {
  return absl::StartsWith(text, kHub) || absl::StartsWith(text, kHttps) ||
         absl::StartsWith(text, kHttp);
}

absl::StatusOr<ModelName> ParseModelName(absl::string_view text) {
  ModelName name{.text = std::string(text)};
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, kHub)) {
    const bool plain = absl::ConsumePrefix(&rest, kHttp);
    if (!plain && !absl::ConsumePrefix(&rest, kHttps))
      return Wrong(text, "hf:ORG/NAME[@REVISION][:FILE] or https://HOST/PATH.gguf");
    if (plain && !IsOnLoopback(rest))
      return Wrong(text, "https: plain http is taken for this machine only");
    const absl::string_view path = rest.substr(0, rest.find_first_of("?#"));
    name.file = std::string(path.substr(path.rfind('/') + 1));
    if (!absl::StrContains(path, '/') || !absl::EndsWith(name.file, ".gguf") ||
        !IsPlainFileName(name.file))
      return Wrong(text, "the address of a GGUF file, https://HOST/PATH.gguf");
    if (text.size() > kUrlBytesMax) return Wrong(text, "an address of at most 200 bytes");
    name.url = name.text;
    return name;
  }
  if (const size_t colon = rest.find(':'); colon != absl::string_view::npos) {
    name.file = std::string(rest.substr(colon + 1));
    rest = rest.substr(0, colon);
    if (!IsPlainFileName(name.file) || !absl::EndsWith(name.file, ".gguf"))
      return Wrong(text, "the name of a GGUF file behind the colon");
  }
  name.revision = "main";
  if (const size_t at = rest.find('@'); at != absl::string_view::npos) {
    name.revision = std::string(rest.substr(at + 1));
    rest = rest.substr(0, at);
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(rest, '/');
  if (parts.size() != 2 || !IsPlainFileName(parts[0]) || !IsPlainFileName(parts[1]) ||
      !IsPlainFileName(name.revision))
    return Wrong(text, "hf:ORG/NAME[@REVISION][:FILE] of letters, digits, '.', '-' and '_'");
  name.org = std::string(parts[0]);
  name.repository = std::string(parts[1]);
  return name;
}

std::string ModelName::folder() const {
  if (is_repository()) {
    // No name holds a '+'.
    return absl::StrCat("hf/", org, "/", repository, "/", revision, file.empty() ? "" : "+", file);
  }
  // Every character other than letters, digits, '.' and '-' becomes '_' and its code, so that
  // different names have different folders.
  std::string flat = "url/";
  for (const char c : url.substr(url.find("://") + 3)) {
    if (absl::ascii_isalnum(c) || c == '.' || c == '-')
      flat += c;
    else
      absl::StrAppend(&flat, "_", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  }
  return flat;
}

}  // namespace tandem::model
