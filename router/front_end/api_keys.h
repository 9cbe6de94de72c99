// Who may use a router, over HTTP and gRPC, and how much. Keys are kept as SHA-256 hashes, so the
// file tells nobody a key. One line a key:
//   NAME  SHA256-IN-HEX  [requests_per_minute=N]  [tokens_per_minute=N]      # comment
// Quotas are token buckets of one minute's amount. Tokens are charged when an answer ends, so a
// bucket may go below zero and then refuses until it has refilled.
// Thread safety: any thread.
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

  // Counts one request for the key in "Bearer KEY". kUnauthenticated without a known one;
  // kResourceExhausted with a retry hint when its quota is used up. The result lives as long as
  // this.
  absl::StatusOr<Key*> Admit(absl::string_view authorization, absl::Time now);
  // An answer of `key` ended.
  void Charge(Key* key, int64_t tokens, absl::Time now);

 private:
  ApiKeys();
  absl::Status AddLine(absl::string_view line);

  absl::Mutex mutex_;
  // By hash, in lower-case hex. A look-up's time tells at most hashes' beginnings.
  // Bound: the lines of the keys file.
  absl::flat_hash_map<std::string, std::unique_ptr<Key>> keys_ ABSL_GUARDED_BY(mutex_);
};

// SHA-256 in lower-case hex.
std::string Sha256Hex(absl::string_view text);

}  // namespace tandem::router
