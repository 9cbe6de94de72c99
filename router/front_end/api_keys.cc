#include "router/front_end/api_keys.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/rpc/error_details.h"

namespace tandem::router {
namespace {

constexpr size_t kHashHexBytes = 64;

// A token bucket that refills to `per_minute` in one minute. 0 = no limit.
struct Bucket {
  double per_minute = 0;
  double left = 0;
  absl::Time at = absl::InfinitePast();

  void Refill(absl::Time now) {
    const double minutes =
        at == absl::InfinitePast() ? 1.0 : absl::FDivDuration(now - at, absl::Minutes(1));
    left = std::min(per_minute, left + std::max(0.0, minutes) * per_minute);
    at = now;
  }
  // Seconds until the bucket holds `wanted`; 0 if it does now.
  int64_t SecondsUntil(double wanted) const {
    if (per_minute == 0 || left >= wanted) return 0;
    return static_cast<int64_t>(std::ceil((wanted - left) / per_minute * 60));
  }
};

// Adds to `status` the seconds until a retry makes sense. Both front ends tell the client.
absl::Status WithRetryAfter(absl::Status status, int64_t seconds) {
  status.SetPayload(rpc::kRetryAfterPayload, absl::Cord(absl::StrCat(seconds)));
  return status;
}

}  // namespace

struct ApiKeys::Key {
  std::string name;
  Bucket requests, tokens;
};

ApiKeys::ApiKeys() = default;
ApiKeys::~ApiKeys() = default;

std::string Sha256Hex(absl::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
}

absl::StatusOr<std::unique_ptr<ApiKeys>> ApiKeys::Load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return absl::NotFoundError(absl::StrCat("api-keys: cannot read ", path));
  return Parse(text.str(), path);
}

absl::StatusOr<std::unique_ptr<ApiKeys>> ApiKeys::Parse(absl::string_view text,
                                                        const std::string& path) {
  auto keys = std::unique_ptr<ApiKeys>(new ApiKeys());
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const absl::Status status = keys->AddLine(line);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("api-keys: ", path, ":", number, ": ", status.message()));
    }
  }
  return keys;
}

absl::Status ApiKeys::AddLine(absl::string_view line) {
  const std::vector<std::string> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  if (words.size() < 2) return absl::InvalidArgumentError("expected a name and a SHA-256 hash");
  const std::string hash = absl::AsciiStrToLower(words[1]);
  if (hash.size() != kHashHexBytes ||
      hash.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return absl::InvalidArgumentError("expected the key's SHA-256 as 64 hex digits");
  }
  auto key = std::make_unique<Key>();
  key->name = words[0];
  for (size_t i = 2; i < words.size(); ++i) {
    const std::pair<std::string, std::string> limit =
        absl::StrSplit(words[i], absl::MaxSplits('=', 1));
    Bucket* bucket = limit.first == "requests_per_minute" ? &key->requests
                     : limit.first == "tokens_per_minute" ? &key->tokens
                                                          : nullptr;
    int64_t amount = 0;
    if (bucket == nullptr || !absl::SimpleAtoi(limit.second, &amount) || amount < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", words[i], "\", expected requests_per_minute=N or tokens_per_minute=N"));
    }
    bucket->per_minute = static_cast<double>(amount);
  }
  absl::MutexLock lock(&mutex_);
  if (!keys_.emplace(hash, std::move(key)).second) {
    return absl::InvalidArgumentError("this hash is listed already");
  }
  return absl::OkStatus();
}

absl::StatusOr<ApiKeys::Key*> ApiKeys::Identify(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) {
    return absl::UnauthenticatedError("authorization: missing, expected \"Bearer\" and an API key");
  }
  const std::string hash =
      Sha256Hex(absl::StripAsciiWhitespace(authorization.substr(kScheme.size())));
  absl::MutexLock lock(&mutex_);
  const auto found = keys_.find(hash);
  if (found == keys_.end()) {
    return absl::UnauthenticatedError("authorization: this API key is not known here");
  }
  return found->second.get();
}

absl::StatusOr<ApiKeys::Key*> ApiKeys::Admit(absl::string_view authorization, absl::Time now) {
  ASSIGN_OR_RETURN(Key* const identified, Identify(authorization));
  Key& key = *identified;
  absl::MutexLock lock(&mutex_);
  key.requests.Refill(now);
  key.tokens.Refill(now);
  const auto refuse = [&key](const char* what, const Bucket& bucket, int64_t seconds) {
    return WithRetryAfter(
        absl::ResourceExhaustedError(absl::StrCat("quota: ", key.name, " has used its ",
                                                  bucket.per_minute, " ", what, " a minute")),
        seconds);
  };
  if (const int64_t wait = key.requests.SecondsUntil(1); wait > 0) {
    return refuse("requests", key.requests, wait);
  }
  if (const int64_t wait = key.tokens.SecondsUntil(1); wait > 0) {
    return refuse("tokens", key.tokens, wait);
  }
  key.requests.left -= 1;
  return &key;
}

void ApiKeys::Charge(Key* key, int64_t tokens, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  key->tokens.Refill(now);
  key->tokens.left -= static_cast<double>(tokens);
}

}  // namespace tandem::router
