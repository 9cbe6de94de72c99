// The API keys that a router accepts over HTTP and gRPC, and each key's quota. The file holds
// SHA-256 hashes, so reading it reveals no key. One line per key:
//   NAME  SHA256-IN-HEX  [requests_per_minute=N]  [tokens_per_minute=N]      # comment
// Each quota is a token bucket that holds one minute's amount. An answer's tokens are charged when
// it ends, so a bucket may fall below zero; it then refuses requests until it has refilled. Thread
// safety: any thread. Errors are statuses; each front end turns them into its protocol's reply. A
// refusal carries the seconds until a retry makes sense in the payload rpc::kRetryAfterPayload.
#pragma once

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::router {

class ApiKeys {
 public:
  struct Key;

  // kNotFound for a file that cannot be read, kInvalidArgument naming a bad line.
  static absl::StatusOr<std::unique_ptr<ApiKeys>> Load(const std::string& path);
  static absl::StatusOr<std::unique_ptr<ApiKeys>> Parse(absl::string_view text,
                                                        const std::string& path);
  ~ApiKeys();

  // The key in "Bearer KEY"; counts nothing. kUnauthenticated if it is missing or not known. The
  // key lives as long as this object.
  absl::StatusOr<Key*> Identify(absl::string_view authorization);
  // Counts one request for the key. Errors: as Identify, and kResourceExhausted, with the retry
  // payload, when the key's quota is used up.
  absl::StatusOr<Key*> Admit(absl::string_view authorization, absl::Time now);
  // Charges the tokens of an answer of `key` that has ended.
  void Charge(Key* key, int64_t tokens, absl::Time now);

 private:
  ApiKeys();
  absl::Status AddLine(absl::string_view line);

  absl::Mutex mutex_;
  // By hash, in lower-case hex. A look-up's timing reveals at most the beginning of a hash.
  // Bound: the lines of the keys file.
  absl::flat_hash_map<std::string, std::unique_ptr<Key>> keys_ ABSL_GUARDED_BY(mutex_);
};

// SHA-256 in lower-case hex.
std::string Sha256Hex(absl::string_view text);

}  // namespace tandem::router
